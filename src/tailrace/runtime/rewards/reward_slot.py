"""A slot of the reward pool: it runs one reward process, and replaces the process when it ends.

A slot is starting, idle, scoring one response, dying, or broken for good (`broken` says why): a process that does
not load the functions the first time breaks it at once, one that did before may fail three times in a row.
Where scores are quick, the slot is given some tasks ahead, so that its process need not wait for messages. If one of
them turns out to be slow, or its process is about to end, those behind it are returned. A process that has seen a
signal to stop returns the first one too.
Each given task ends in exactly one of: `on_result`, `on_returned` (another process is to score it), or `abort`. If a
response cannot be read from the payload store, `DamagedStore` is raised into the event loop.
The process is told not to start on returned and aborted tasks. If it already has, it may finish within a short time;
then it is killed. Most rewards take less time than starting a process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.launchers.worker import Launcher, WorkerHandle, WorkerSpec
from tailrace.store.record_frame import DamagedStore
from tailrace.workers.reward_messages import (
    ResponseUnreadable,
    RewardEnding,
    RewardInit,
    RewardReady,
    RewardRefused,
    ScoreStarted,
    SkipTasks,
    TaskReturned,
    TaskSkipped,
)
from tailrace.workers.reward_tasks import RewardTask

_MAX_FAILED_STARTS = 3
_PICK_UP_S = 30.0
_DROP_GRACE_S = 1.0
_AHEAD_S = 0.2
"""Seconds of work that a slot is given ahead, judged by its last score. A score that takes longer is slow."""
_MOST_AHEAD = 32
"""Most tasks that a slot holds."""
_SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(slots=True, eq=False)
class _Given:
    task: RewardTask
    is_dropped: bool = False
    """Whether its result does not count: it was aborted, or returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostProcess:
    """How a process ended before it started on the task that was its next."""

    reason: str
    had_scored: bool
    """Whether it had scored other responses, which may be to blame as well."""


class RewardSlot:
    """Owns one process at a time, its tasks and its timer. `launch` starts it."""

    def __init__(
        self,
        name: str,
        init: RewardInit,
        *,
        launch: Launcher,
        start_limit_s: float,
        gather_s: float,
        on_change: Callable[[], None],
        on_result: Callable[[ScoreResult], None],
        on_returned: Callable[[RewardTask, LostProcess | None], None],
        say: Callable[[str], None],
    ) -> None:
        """`on_returned` is told how the process ended if this task was its next and may be the cause, else None."""
        self.name = name
        self.since = 0.0
        """When the first task was given or, if the process has started on it, when it called the present function."""
        self.limit_s = 0.0
        """Time limit of that function."""
        self._began_at = 0.0
        """When the process started on the first task."""
        self._given: deque[_Given] = deque()
        """In the order given. The process works on the first."""
        self._num_ahead = 1
        self.is_starting = False
        self.has_started = False
        """Whether a process of this slot has loaded the functions at least once."""
        self.broken: str | None = None
        self.num_restarts = 0
        self._launch = launch
        self._spec = WorkerSpec(
            name=name,
            entry="tailrace.workers.reward_worker:serve",
            init=init,
            env=_SINGLE_THREADED,
            gather_s=gather_s,
        )
        self._start_limit_s = start_limit_s
        self._on_change, self._on_result, self._on_returned = on_change, on_result, on_returned
        self._say = say
        self._worker: WorkerHandle | None = None
        self._is_ready = False
        self._is_scoring = False
        self._had_scored = False
        """Whether the present process has scored a response."""
        self._refusal: str | None = None
        self._num_failed_starts = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_given(self) -> int:
        """Number of tasks that its process has, those whose result does not count included."""
        return len(self._given)

    @property
    def has_room(self) -> bool:
        return self._is_ready and len(self._given) < self._num_ahead

    @property
    def task(self) -> RewardTask | None:
        """The task that its process works on."""
        return self._given[0].task if self._given else None

    def launch(self) -> None:
        self.is_starting, self._had_scored, self._refusal = True, False, None
        self._worker = self._launch(self._spec, hear=self._receive, lose=self._count_as_lost)
        self._arm(self._start_limit_s, self._end_slow_start)

    def give(self, task: RewardTask) -> None:
        assert self.has_room
        assert self._worker is not None
        self._given.append(_Given(task))
        if len(self._given) == 1:
            self._expect_start()
        self._worker.send(task)

    def abort(self, responses: Collection[ResponseId]) -> list[ResponseId]:
        """Abort tasks and return which. If the process works on one of them, it is killed and replaced, unless it
        finishes within a short time."""
        aborted = [given for given in self._given if given.task.response_id in responses and not given.is_dropped]
        for given in aborted:
            if given is self._given[0]:
                self._arm(_DROP_GRACE_S, self._kill)
        self._drop(aborted)
        return [given.task.response_id for given in aborted]

    async def stop(self) -> None:
        self._given.clear()
        self._disarm()
        self._is_ready = False
        if self._worker is not None:
            await self._worker.stop(grace_s=0.0)

    def _receive(self, message: object) -> None:
        match message:
            case RewardReady():
                self.is_starting, self._is_ready, self.has_started = False, True, True
                self._num_failed_starts = 0
                self._disarm()
            case RewardRefused(reason=reason):
                self._refusal = reason
            case ScoreStarted(response_id=response, limit_s=limit_s) if self._is_next(response):
                self._begin(limit_s)
            case RewardEnding():
                self._is_ready = False
                self._return_rest()
            case TaskReturned(response_id=response) if self._is_next(response):
                self._give_back()
            case TaskSkipped(response_id=response) if self._is_next(response):
                self._take_first()
            case ScoreResult(response_id=response) if self._is_next(response):
                self._had_scored = True
                self._num_ahead = max(1, min(_MOST_AHEAD, int(_AHEAD_S / max(message.seconds, 1e-6))))
                if self._take_first() is not None:
                    self._on_result(message)
            case ResponseUnreadable(response_id=response, reason=reason) if self._is_next(response):
                if self._take_first() is not None:
                    raise DamagedStore(reason)
        self._on_change()

    def _give_back(self) -> None:
        """The process ends, because a signal to stop has come: let others have all its tasks."""
        self._is_ready = False
        self._return_rest()
        task = self._take_first()
        self._arm(_DROP_GRACE_S, self._kill)
        if task is not None:
            self._on_returned(task, None)

    def _begin(self, limit_s: float) -> None:
        """The process calls a function for its first task."""
        is_first_call, self._is_scoring = not self._is_scoring, True
        self.since, self.limit_s = _now(), limit_s
        if is_first_call:
            self._began_at = self.since
        if not self._given[0].is_dropped:
            self._arm(min(_AHEAD_S, limit_s), self._slow_down)
        elif is_first_call:
            self._arm(_DROP_GRACE_S, self._kill)

    def _slow_down(self) -> None:
        """The score is slow: let others have the tasks behind it."""
        self._num_ahead = 1
        self._arm(max(0.0, self.since + self.limit_s - _now()), self._end_overdue)
        self._return_rest()
        self._on_change()

    def _return_rest(self) -> None:
        """Return all tasks but the first, the last one first."""
        rest = [given for given in list(self._given)[1:] if not given.is_dropped]
        self._drop(rest)
        for given in reversed(rest):
            self._on_returned(given.task, None)

    def _drop(self, tasks: Collection[_Given]) -> None:
        for given in tasks:
            given.is_dropped = True
        if tasks and self._worker is not None:
            self._worker.send(SkipTasks(responses=frozenset(given.task.response_id for given in tasks)))

    def _count_as_lost(self, reason: str) -> None:
        self._worker, self._is_ready = None, False
        self._disarm()
        self._return_rest()
        first = self._given[0] if self._given else None
        self._given.clear()
        if first is not None and not first.is_dropped:
            if self._is_scoring:
                self._on_result(_failure(first.task, Outcome.CRASH, reason, _now() - self._began_at))
            else:
                self._on_returned(first.task, LostProcess(reason=reason, had_scored=self._had_scored))
        if self.is_starting:
            self._count_failed_start(self._refusal or f"{reason} (while it was loading the reward functions)")
        else:
            self.num_restarts += 1
            self.launch()
        self._on_change()

    def _count_failed_start(self, reason: str) -> None:
        self._num_failed_starts += 1
        if self.has_started and self._num_failed_starts < _MAX_FAILED_STARTS:
            self.launch()
        else:
            self.is_starting, self.broken = False, reason

    def _end_overdue(self) -> None:
        first = self._given[0]
        assert not first.is_dropped
        first.is_dropped = True
        self._kill()
        detail = f"no score within {self.limit_s:g} s, so {self.name} was killed"
        self._on_result(_failure(first.task, Outcome.TIMEOUT, detail, _now() - self._began_at))

    def _end_slow_start(self) -> None:
        self._refusal = f"{self.name} did not load the reward functions within {self._start_limit_s:g} s"
        self._kill()

    def _end_stuck(self) -> None:
        self._say(f"{self.name} did not begin on a response within {_PICK_UP_S:g} s, so it is killed and started again")
        self._kill()

    def _kill(self) -> None:
        self._is_ready = False
        if self._worker is not None:
            self._worker.kill()

    def _is_next(self, response: ResponseId) -> bool:
        return bool(self._given) and self._given[0].task.response_id == response

    def _take_first(self) -> RewardTask | None:
        """Remove and return the first task; None if its result does not count. The next one is expected to start."""
        first = self._given.popleft()
        self._expect_start()
        return None if first.is_dropped else first.task

    def _expect_start(self) -> None:
        """See to it that the process starts on its first task, if it has one."""
        self._is_scoring = False
        if self._given:
            # A process may be unable to start on a task: a thread left behind by an earlier task may never yield.
            self.since = _now()
            self._arm(_PICK_UP_S, self._end_stuck)
        else:
            self._disarm()

    def _arm(self, seconds: float, callback: Callable[[], None]) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, callback)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _failure(task: RewardTask, outcome: Outcome, detail: str, seconds: float) -> ScoreResult:
    return ScoreResult(response_id=task.response_id, outcome=outcome, score=0.0, detail=detail, seconds=seconds)


def _now() -> float:
    return asyncio.get_running_loop().time()
