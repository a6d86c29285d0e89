"""A slot of the judge pool: it runs one judge, and starts it again when it ends.

A judge computes what waits inside it in passes. The time limit of a response begins with its pass (`PassStarted`). Past
the limit the judge is killed: the responses of the pass get `timeout`, the others are returned. A judge that has
responses and starts no pass is killed too, after `pick_up_s`.
Each given task ends in exactly one of: `on_result`, `on_returned` (a judge is to score it again), or `abort`. A task is
returned with a loss if the judge ended in its pass, or before any pass: then the task may have done it. If a response
cannot be read from the payload store, `DamagedStore` is raised into the event loop.
Starting again may fail three times in a row and takes no longer than one start may, and six judges in a row may end
without any result: then the slot is broken for good (`broken` says why). A judge that refuses the first time breaks it
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.launchers.worker import Launcher, WorkerHandle, WorkerSpec
from tailrace.store.record_frame import DamagedStore
from tailrace.workers.judge_messages import JudgeReady, JudgeRefused, JudgeResponses, PassStarted, ResponsesJudged
from tailrace.workers.reward_messages import ResponseUnreadable, SkipTasks, TaskSkipped
from tailrace.workers.reward_tasks import RewardTask

_MAX_FAILED_STARTS = 3
_MAX_WITHOUT_RESULT = 6
"""Judges in a row that may end without any result. More than one response costs by itself."""


@dataclass(slots=True, eq=False)
class Given:
    """A task that the judge has."""

    task: RewardTask
    started: float | None = None
    """When its pass started; None: it waits."""
    is_dropped: bool = False
    """Whether its result does not count, because it was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLimits:
    """Seconds."""

    start_s: float
    """Until the model is loaded."""
    pass_s: float
    pick_up_s: float
    """Without a message from a judge that has responses and computes no pass."""


class JudgeSlot:
    """Owns one judge at a time, its tasks and its timer. `launch` starts it."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        launch: Launcher,
        limits: JudgeLimits,
        recover: Callable[[], Awaitable[None]] | None,
        say: Callable[[str], None],
        on_change: Callable[[], None],
        on_result: Callable[[RewardTask, ScoreResult], None],
        on_returned: Callable[[RewardTask, str | None], None],
    ) -> None:
        """`recover` is awaited before a lost judge is started again. `on_returned` is told how the judge ended if the
        task may have done it, else None."""
        self.given: dict[ResponseId, Given] = {}
        self._unsent: list[RewardTask] = []
        self.is_starting = self.has_started = False
        """`has_started`: whether a judge of this slot has loaded its model at least once."""
        self.broken: str | None = None
        self.num_restarts = 0
        self._spec, self._launch, self._limits, self._recover, self._say = spec, launch, limits, recover, say
        self._on_change, self._on_result, self._on_returned = on_change, on_result, on_returned
        self._worker: WorkerHandle | None = None
        self._is_ready = self._is_stopped = False
        self._heard_at = 0.0
        """When the judge sent its last message, or was given a task while it had none."""
        self._killed_because: str | None = None
        """Why this slot has killed its judge."""
        self._is_killed_with_others = False
        self._num_failed_starts = self._num_without_result = 0
        self._start_by = 0.0
        """When a judge that is started again must have loaded its model."""
        self._timer: asyncio.TimerHandle | None = None
        self._recovery: asyncio.Future[None] | None = None

    @property
    def name(self) -> str:
        return self._spec.name

    def has_room(self, most: int) -> bool:
        return self._is_ready and len(self.given) < most

    def launch(self) -> None:
        self._start_by = _now() + self._limits.start_s
        self._start()

    def give(self, task: RewardTask) -> None:
        """Give the judge a task, which `send_given` sends."""
        assert self._worker is not None
        if not self.given:
            self._heard_at = _now()
        self.given[task.response_id] = Given(task)
        self._unsent.append(task)

    def send_given(self) -> None:
        """Send what was given since the last time in one message, so that the judge can compute it in one pass."""
        if self._unsent:
            assert self._worker is not None
            self._worker.send(JudgeResponses(tasks=tuple(self._unsent)))
            self._unsent.clear()
            self._set_timer()

    def abort(self, responses: Collection[ResponseId]) -> list[RewardTask]:
        """Abort tasks and return which. A pass goes on without them."""
        aborted = [each for response, each in self.given.items() if response in responses and not each.is_dropped]
        for each in aborted:
            each.is_dropped = True
        if waiting := frozenset(each.task.response_id for each in aborted if each.started is None):
            assert self._worker is not None
            self._worker.send(SkipTasks(responses=waiting))
        return [each.task for each in aborted]

    def kill_with_others(self) -> None:
        """Kill the judge because its GPU must be left by all processes, and start it again."""
        if self._worker is not None:
            self._is_killed_with_others = True
            self._kill("the GPU must be free of processes")

    async def stop(self) -> None:
        self.given.clear()
        self._is_stopped, self._is_ready = True, False
        self._disarm()
        if self._recovery is not None:
            self._recovery.cancel()
        if self._worker is not None:
            await self._worker.stop(grace_s=0.0)

    def _start(self) -> None:
        if self._is_stopped:
            return
        self.is_starting, self._is_ready = True, False
        self._killed_because, self._is_killed_with_others = None, False
        self._arm(max(0.0, self._start_by - _now()), self._end_slow_start)
        self._worker = self._launch(self._spec, hear=self._receive, lose=self._count_as_lost)

    def _receive(self, message: object) -> None:
        self._heard_at = _now()
        match message:
            case JudgeReady():
                if self._killed_because is None:
                    self.is_starting, self._is_ready, self.has_started = False, True, True
                    self._num_failed_starts = 0
            case JudgeRefused(reason=reason):
                self._killed_because = reason
            case PassStarted(responses=responses):
                for response in responses:
                    if (each := self.given.get(response)) is not None:
                        each.started = self._heard_at
            case ResponsesJudged(results=results):
                self._num_without_result = 0
                for result in results:
                    self._take(result)
            case TaskSkipped(response_id=response):
                self.given.pop(response, None)
            case ResponseUnreadable(response_id=response, reason=reason):
                each = self.given.pop(response, None)
                if each is not None and not each.is_dropped:
                    raise DamagedStore(reason)
        self._set_timer()
        self._on_change()

    def _take(self, result: ScoreResult) -> None:
        each = self.given.pop(result.response_id, None)
        if each is not None and not each.is_dropped:
            self._on_result(each.task, result)

    def _set_timer(self) -> None:
        """Expect the end of the oldest pass, or the start of one."""
        if self.is_starting:
            return
        starts = [each.started for each in self.given.values() if each.started is not None]
        if starts:
            self._arm(min(starts) + self._limits.pass_s - _now(), self._end_overdue)
        elif self.given:
            self._arm(self._heard_at + self._limits.pick_up_s - _now(), self._end_stuck)
        else:
            self._disarm()

    def _end_overdue(self) -> None:
        """Kill the judge, whose pass takes too long. Responses of that pass get `timeout`."""
        latest_start = _now() - self._limits.pass_s
        overdue = [each for each in self.given.values() if each.started is not None and each.started <= latest_start]
        if not overdue:  # a timer may fire a moment early
            self._arm(0.01, self._end_overdue)
            return
        reason = f"no score within {self._limits.pass_s:g} s, so {self.name} was killed"
        for each in overdue:
            del self.given[each.task.response_id]
        self._kill(reason)
        for each in overdue:
            if not each.is_dropped:
                assert each.started is not None
                self._on_result(each.task, failure(each.task, Outcome.TIMEOUT, reason, _now() - each.started))
        self._on_change()

    def _end_stuck(self) -> None:
        reason = f"{self.name} did not begin within {self._limits.pick_up_s:g} s, so it was killed"
        self._return_all(lambda each: reason)
        self._kill(reason)
        self._on_change()

    def _end_slow_start(self) -> None:
        self._kill(f"{self.name} did not load its model within {self._limits.start_s:g} s")

    def _kill(self, reason: str) -> None:
        """Kill the judge. What it has is returned, as it has done nothing wrong."""
        self._is_ready, self._killed_because = False, reason
        self._disarm()
        self._return_all(lambda each: None)
        if self._worker is not None:
            self._worker.kill()

    def _return_all(self, loss_of: Callable[[Given], str | None]) -> None:
        """Return all tasks, the last one first."""
        given, self.given = list(self.given.values()), {}
        for each in reversed(given):
            if not each.is_dropped:
                self._on_returned(each.task, loss_of(each))

    def _count_as_lost(self, reason: str) -> None:
        self._worker, self._is_ready = None, False
        self._disarm()
        reason = self._killed_because or reason
        has_pass = any(each.started is not None for each in self.given.values())
        self._return_all(lambda each: reason if each.started is not None or not has_pass else None)
        if self.is_starting and not self._is_killed_with_others:
            self._count_failed_start(reason)
        else:
            self._replace(reason)
        self._on_change()

    def _replace(self, reason: str) -> None:
        """Start a judge again that has worked, unless judge after judge ends without any result."""
        self.num_restarts += 1
        self._num_without_result += not self._is_killed_with_others
        if self._num_without_result >= _MAX_WITHOUT_RESULT:
            self._give_up(f"{reason}; {self._num_without_result} judges in a row ended without any score")
            return
        self._start_by = _now() + self._limits.start_s
        self._say(f"{self.name} is lost: {reason}; it is started again (its log: logs/{self.name}.log)")
        self._restart()

    def _count_failed_start(self, reason: str) -> None:
        self._num_failed_starts += 1
        may_retry = self._num_failed_starts < _MAX_FAILED_STARTS and _now() < self._start_by
        if self.has_started and may_retry:
            self._restart()
            return
        self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.is_starting, self.broken = False, reason
        if self.has_started:
            self._say(f"{self.name} is given up: {reason} (its log: logs/{self.name}.log)")

    def _restart(self) -> None:
        self.is_starting = True
        if self._recover is None:
            self._start()
        else:
            self._recovery = asyncio.ensure_future(self._start_after(self._recover))

    async def _start_after(self, recover: Callable[[], Awaitable[None]]) -> None:
        try:
            await recover()
        finally:
            self._start()

    def _arm(self, seconds: float, callback: Callable[[], None]) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), callback)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def failure(task: RewardTask, outcome: Outcome, detail: str, seconds: float) -> ScoreResult:
    return ScoreResult(response_id=task.response_id, outcome=outcome, score=0.0, detail=detail, seconds=seconds)


def _now() -> float:
    return asyncio.get_running_loop().time()
