"""Fit the cost model to journals of real runs, and say how far off it is.

The engine's costs are fitted by ``observe/costs/fitting.py``, over samples of some steps each. The trainer has a fixed
cost and a cost per token. Costs are never negative. The rest are means.

Samples of work that ran alone and of work that ran beside other work on the same devices are kept apart. Costs are
fitted to the first; the slowdown of rollout and training by each other is fitted to the second. The extra time of a
process that has just started is warm-up and belongs to neither, nor do samples of an engine during another process's
start.

Messages and decisions take no time in a simulation. The time that is therefore missing from the simulated runs is added
at the end: all steps of engine and trainer are multiplied by one factor.

The error is that of whole optimizer steps: the run is simulated with the fitted costs and the recorded lengths, and
each step's seconds are compared with the real ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median, pstdev
from typing import Any, TypeVar

from tailrace.core.costs import PrefillWork
from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.length_classes import length_classes
from tailrace.core.outcomes import Part
from tailrace.core.schedule import Schedule
from tailrace.observe.costs.fitting import ErrorScale, error, fit_engine, fit_linear, fit_prefill, sample_s
from tailrace.observe.costs.token_clock import EngineSample
from tailrace.observe.metrics.rows import Metrics
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.observations import Observations, PartSeen, TrainingSample
from tailrace.sim.one_size import of_one_size
from tailrace.sim.recorded_work import RecordedWork
from tailrace.sim.result import run_schedule
from tailrace.sim.reward_model import FittedPart, RewardCosts, RewardKind
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import Sharing, WorldCosts

_PROMPT_LENGTH = 12
_REPORT_S = 0.05
"""Seconds between two reports of finished responses by a rollout worker."""
_MOST_SLOWDOWN = 16.0
_LITTLE = 0.02
"""A sample counts as alone if it ran beside other work for less than this share of its time."""
_ON_GPU = Sharing(rollout=1.7, training=1.2)
"""Slowdowns on a GPU, if the journals do not tell. Those of runs of a small model on an H200 with MPS
(``benchmarks/results/journals/gpu_steps_h200``: 1.69 and 1.22)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts about a machine that its journals do not contain."""

    prompt_length: int
    """Mean tokens of a prompt."""
    max_response_length: int
    kv_capacity: int
    max_running: int
    num_prompts: int
    num_reward_workers: int
    num_test_workers: int = 1
    num_judges: int = 1
    num_replicas: int = 1
    """Replicas of the trainer."""
    report_s: float = 0.0
    shares_prompts: bool = False
    """Whether its engines compute a prompt once for all members of a group."""
    prefill_chunk: int | None = None
    """Most tokens that its engines prefill before one step, padding included; None: no limit and no padding."""
    length_classes: tuple[int, ...] = ()
    """Capacities of the rows that its engines keep the KV cache in; none: they attend to what is held."""
    sharing: Sharing = Sharing()
    """Assumed slowdowns, if rollout and training never ran at the same time in its journals."""

    @property
    def workers(self) -> dict[Part, int]:
        """Workers of each part of a score."""
        counts = (self.num_reward_workers, self.num_test_workers, self.num_judges)
        return dict(zip((Part.FUNCTION, Part.TESTS, Part.JUDGE), counts, strict=True))

    @classmethod
    def of(cls, config: Mapping[str, Any], *, num_prompts: int) -> MachineFacts:
        """Return the machine that the settings of a run describe; ``ValueError`` if a setting is missing."""
        try:
            rollout, data, reward = config["rollout"], config["data"], config["reward"]
            longest = data["max_prompt_length"] + rollout["max_response_length"]
            return cls(
                # Not in the journal. What another number would change, the fitted costs per response make up for.
                prompt_length=min(_PROMPT_LENGTH, data["max_prompt_length"]),
                max_response_length=rollout["max_response_length"],
                kv_capacity=rollout["kv_tokens"] or rollout["max_running"] * longest // 2,
                max_running=rollout["max_running"],
                num_prompts=num_prompts,
                num_reward_workers=reward["workers"],
                num_test_workers=reward.get("code_tests", {}).get("workers") or reward["workers"],
                num_judges=reward.get("judge", {}).get("workers", 1),
                num_replicas=config.get("trainer", {}).get("num_replicas", 1),
                report_s=_REPORT_S,
                shares_prompts=True,
                prefill_chunk=rollout["prefill_chunk"],
                length_classes=length_classes(longest) if _has_rows(config) else (),
                sharing=_ON_GPU if _is_on_gpu(config) else Sharing(),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the run's config.json does not say what the simulator needs: {error}") from None


def _has_rows(config: Mapping[str, Any]) -> bool:
    """Whether its engines keep the KV cache in rows, one for each response, and not in pages."""
    rollout = config["rollout"]
    decoding = rollout.get("decoding", "plain")  # a run that does not say it is older than pages
    return rollout["engine"] == "native" and (decoding == "plain" or (decoding == "auto" and not _is_on_gpu(config)))


def _is_on_gpu(config: Mapping[str, Any]) -> bool:
    return str(config.get("model", {}).get("device", "cpu")).startswith("cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    costs: WorldCosts
    engine_error: float
    """Mean absolute percentage error over samples of engine steps."""
    num_samples: int
    num_steps: int
    saw_overlap: bool = True
    """Whether rollout and training ran at the same time in a run. If not, ``costs.sharing`` is assumed."""
    stretch: float = 1.0
    """Factor by which the steps of engine and trainer were multiplied at the end."""


def calibrate(journals: Sequence[Sequence[Entry]], machine: MachineFacts) -> Calibration:
    """Fit to one or more journals written on the same machine.

    ``ValueError`` if a run worked with several parallel sizes, or if too little was measured.
    """
    schedules = [schedule_of(journal) for journal in journals]
    fitted = _fit(journals, machine)
    measured = simulated = 0.0
    for journal, schedule in zip(journals, schedules, strict=True):
        steps = step_seconds(journal)
        as_far = replace(schedule, max_steps=len(steps))  # the run may have been stopped early
        measured += sum(steps[1:])
        simulated += sum(predict(journal, fitted, as_far)[1:])
    return _stretched(fitted, measured / simulated) if measured and simulated else fitted


def _stretched(fitted: Calibration, factor: float) -> Calibration:
    engine, trainer = fitted.costs.engine, fitted.costs.trainer
    costs = replace(fitted.costs, engine=engine.times(factor), trainer=trainer.times(factor))
    return replace(fitted, costs=costs, stretch=factor)


def _fit(journals: Iterable[Iterable[Entry]], machine: MachineFacts) -> Calibration:
    seen = Observations(
        prompt_length=machine.prompt_length,
        max_running=machine.max_running,
        num_reward_workers=machine.workers,
        prefill_chunk=machine.prefill_chunk,
        length_classes=machine.length_classes,
        num_replicas=machine.num_replicas,
    )
    for journal in journals:
        for entry in journal:
            seen.feed(entry)
    if len(seen.engine) < 5 or not seen.training:
        found = f"{len(seen.engine)} samples of engine steps and {len(seen.training)} optimizer steps"
        raise ValueError(f"{found} are too few")
    undisturbed = [sample for sample in seen.engine if not sample.is_beside_start] or seen.engine
    alone = _alone(undisturbed)
    engine, trainer = _fit_engine(alone, seen.prefill, machine), _fit_trainer(seen, machine.num_replicas)
    beside = [(x, sample_s(engine, x)) for x in undisturbed if not x.is_first and _is_disturbed(x)]
    training = [(x, trainer.step(x.tokens)) for x in seen.training if not x.is_first and _is_disturbed(x)]
    return Calibration(
        costs=WorldCosts(
            engine=engine,
            instance=_fit_instance(seen, engine, machine),
            trainer=trainer,
            reward=_fit_rewards(seen, machine),
            sharing=Sharing(
                rollout=_slowdown(beside, machine.sharing.rollout),
                training=_slowdown(training, machine.sharing.training),
            ),
            num_prompts=machine.num_prompts,
            prompt_length=machine.prompt_length,
            max_response_length=machine.max_response_length,
        ),
        engine_error=error([sample_s(engine, sample) for sample in alone], [sample.seconds for sample in alone]),
        num_samples=len(alone),
        num_steps=len(seen.training),
        saw_overlap=bool(beside and training),
    )


def step_seconds(entries: Iterable[Entry]) -> list[float]:
    """Return the seconds of each optimizer step of a run."""
    metrics = Metrics()
    rows = [row for entry in entries for row in metrics.feed(entry)]
    return [row["timing_s/step"] for row in rows if "timing_s/step" in row]


def predict(entries: Sequence[Entry], calibration: Calibration, schedule: Schedule | None = None) -> list[float]:
    """Return the simulated seconds of each step of this run, or of another schedule on its lengths."""
    return step_seconds(simulate([entries], calibration, schedule or schedule_of(entries))[0])


def simulate(
    journals: Sequence[Sequence[Entry]], calibration: Calibration, schedule: Schedule
) -> tuple[list[Entry], int]:
    """Return the journal of this schedule on the lengths of these runs, and how many lengths were drawn at random.

    Prompts come in the order of the first run. If several runs have a response, its length in the first of them counts.
    """
    work = RecordedWork.of(journals)
    simulated: list[Entry] = []
    lengths = work.lengths(seed=0)
    run_schedule(schedule, calibration.costs, lengths, order=work.order, record=simulated.append)
    return simulated, len(lengths.drawn)


def schedule_of(entries: Sequence[Entry]) -> Schedule:
    """Return the schedule of a run as it is simulated, with one parallel size; ``ValueError`` if it had several."""
    return of_one_size(recorded_schedule(entries), entries)


def recorded_schedule(entries: Sequence[Entry]) -> Schedule:
    first = entries[0].event
    if not isinstance(first, RunStarted):
        raise ValueError(f"a journal begins with RunStarted, not {type(first).__name__}")
    return first.schedule


def _fit_engine(samples: Sequence[EngineSample], prefill: Sequence[PrefillWork], machine: MachineFacts) -> EngineCosts:
    measured = fit_prefill(prefill) if machine.shares_prompts else None
    costs = fit_engine(samples, ErrorScale.SECONDS, shares_prompts=machine.shares_prompts, prefill=measured)
    return EngineCosts(
        **asdict(costs),
        kv_capacity=machine.kv_capacity,
        max_running=machine.max_running,
        prefill_chunk=machine.prefill_chunk,
        length_classes=machine.length_classes,
    )


def _fit_instance(seen: Observations, engine: EngineCosts, machine: MachineFacts) -> InstanceTimes:
    """An engine is given work as soon as it has started, so its warm-up counts as part of the start."""
    warm_up_s = _mean([x.seconds - sample_s(engine, x) for x in seen.engine if x.is_first])
    return InstanceTimes(
        start_s=_mean(seen.instance_start_s) + max(warm_up_s, 0.0),
        pull_s=_mean(seen.pull_s),
        release_s=_mean(seen.release_s),
        report_s=machine.report_s,
    )


def _fit_trainer(seen: Observations, num_replicas: int) -> TrainerCosts:
    alone = _alone(seen.training)
    fixed_s, token_s = fit_linear([[1.0, sample.tokens] for sample in alone], [sample.seconds for sample in alone])
    first = [x for x in seen.training if x.is_first and not x.overlaps]
    return TrainerCosts(
        fixed_s=fixed_s,
        token_s=token_s * num_replicas,
        num_replicas=num_replicas,
        publish_s=_mean(seen.publish_s),
        checkpoint_s=_mean(seen.save_s),
        start_s=_mean(seen.trainer_start_s),
        warm_up_s=max(0.0, _mean([x.seconds - fixed_s - token_s * x.tokens for x in first])),
    )


Sample = TypeVar("Sample", EngineSample, TrainingSample)


def _alone(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of warm processes that ran alone on their devices; all samples if there is none."""
    warm = [sample for sample in samples if not sample.is_first] or list(samples)
    return [sample for sample in warm if not _is_disturbed(sample)] or warm


def _overlap_s(sample: EngineSample | TrainingSample) -> float:
    return sum(seconds for seconds, _ in sample.overlaps)


def _is_disturbed(sample: EngineSample | TrainingSample) -> bool:
    return _overlap_s(sample) > _LITTLE * sample.seconds


def _slowdown(samples: Sequence[tuple[EngineSample | TrainingSample, float]], unseen: float) -> float:
    """Return the factor by which work takes longer beside full load of the other side, from pairs (sample that ran
    beside it, its seconds if it had run alone). ``unseen``: the factor if there are none.

    In a second beside a part ``busy`` of the other side, ``1 / (1 + (slowdown - 1) * busy)`` seconds of work are done:
    the slowdown is the one under which all the work is done in all the time.
    """
    work = sum(alone for _, alone in samples)
    free = sum(max(0.0, sample.seconds - _overlap_s(sample)) for sample, _ in samples)
    overlaps = [overlap for sample, _ in samples for overlap in sample.overlaps]

    def done(slowdown: float) -> float:
        return free + sum(seconds / (1.0 + (slowdown - 1.0) * busy) for seconds, busy in overlaps)

    return _falling(lambda slowdown: done(slowdown) - work, 1.0, _MOST_SLOWDOWN) if overlaps else unseen


def _falling(value: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is zero, or the end of the range that is nearest to it."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) > 0 else (low, middle)
    return low


def _fit_rewards(seen: Observations, machine: MachineFacts) -> RewardCosts:
    costs = RewardCosts(seed=0, num_workers=machine.num_reward_workers)
    parts = seen.rewards or {Part.FUNCTION: PartSeen(Part.FUNCTION)}
    if list(parts) == [Part.FUNCTION]:
        return replace(costs, kinds=(_fit_kind(parts[Part.FUNCTION]),))
    fitted = (
        FittedPart(
            part=part,
            num_workers=machine.workers[part],
            kind=_fit_kind(parts[part]),
            abstain_share=_mean([float(abstained) for abstained in parts[part].abstained.values()]),
        )
        for part in Part
        if part in parts
    )
    return replace(costs, fitted=tuple(fitted))


def _fit_kind(seen: PartSeen) -> RewardKind:
    seconds = [max(value, 1e-6) for value in seen.seconds] or [1e-6]
    total = len(seen.seconds) + seen.num_timeouts
    return RewardKind(
        median_s=median(seconds),
        spread=pstdev([math.log(value) for value in seconds]),
        timeout_share=seen.num_timeouts / total if total else 0.0,
        timeout_s=max(seconds) * 1.01,
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
