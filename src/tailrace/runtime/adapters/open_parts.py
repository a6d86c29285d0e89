"""Opens the workers of each part of the scores of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Part
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.adapters.first_messages import judge_init
from tailrace.runtime.adapters.open_judges import open_judges
from tailrace.runtime.inputs.catalogue import Catalogue
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.launchers.place import WorkerPlace
from tailrace.runtime.rewards.case_limits import NewestLimits
from tailrace.runtime.rewards.judge_pool import JudgePool
from tailrace.runtime.rewards.reward_pool import RewardPool
from tailrace.runtime.rewards.score_batcher import ScoreBatcher
from tailrace.runtime.rewards.score_parts import ScorePart, ScoreParts
from tailrace.runtime.rewards.scoring import Scoring, ScoringPool
from tailrace.runtime.threads.work_thread import WorkThread
from tailrace.workers.report_interval import gather_s
from tailrace.workers.reward_tasks import RewardTask

START_LIMIT_S = 600.0
"""Seconds in which the workers must be ready."""


def open_score_parts(
    settings: Settings,
    sources: Sources,
    catalogue: Catalogue,
    *,
    place: WorkerPlace,
    post: Callable[[ev.Event], None],
    work: WorkThread,
    say: Callable[[str], None],
    recover: Callable[[], Awaitable[None]] | None = None,
) -> ScoreParts:
    """``work``: the thread that makes tasks. ``recover`` is awaited before a lost judge is started again."""
    task = _task_maker(sources, catalogue, shares_files=place.launch.shares_files)

    def make(part: Part) -> ScorePart:
        scores, limits = ScoreBatcher(post, part), NewestLimits()

        def applies(response: ResponseId) -> bool:
            return catalogue.has_part(response, part)

        if part is Part.JUDGE:
            judges = _judges(settings, sources, place, scores.add, say=say, recover=recover)
            scoring = Scoring(judges, scores, task=task, work=work, applies=applies)
            is_elsewhere = settings.reward.judge.url is not None
            return ScorePart(pool=judges, scoring=scoring, kill_on_gpu=None if is_elsewhere else judges.kill_all)
        pool = _pool(part, settings, sources, place, scores.add, limits, say)
        return ScorePart(pool=pool, scoring=Scoring(pool, scores, task=task, work=work, applies=applies, limits=limits))

    return ScoreParts({part: make(part) for part in sources.rewards.parts})


def _pool(
    part: Part,
    settings: Settings,
    sources: Sources,
    place: WorkerPlace,
    on_result: Callable[[ScoreResult], None],
    limits: NewestLimits,
    say: Callable[[str], None],
) -> ScoringPool:
    return RewardPool(
        settings.reward,
        launch=place.launch,
        on_result=on_result,
        part=part,
        uses=sources.rewards.uses_of(part),
        detokenizer=sources.detokenizer,
        start_limit_s=START_LIMIT_S,
        gather_s=gather_s(settings.rollout.num_instances),
        limits=limits,
        say=say,
    )


def _judges(
    settings: Settings,
    sources: Sources,
    place: WorkerPlace,
    on_result: Callable[[ScoreResult], None],
    *,
    say: Callable[[str], None],
    recover: Callable[[], Awaitable[None]] | None,
) -> JudgePool:
    (use,) = sources.rewards.uses_of(Part.JUDGE)
    return open_judges(
        settings.reward.judge,
        judge_init(settings, sources),
        use=use,
        start_s=settings.limits.start_s,
        launch=place.launch,
        env=place.judge_env,
        on_result=on_result,
        say=say,
        recover=recover,
    )


def _task_maker(sources: Sources, catalogue: Catalogue, *, shares_files: bool) -> Callable[[ResponseId], RewardTask]:
    if sources.detokenizer is None:
        return catalogue.task
    return catalogue.stored_task if shares_files else catalogue.sent_task
