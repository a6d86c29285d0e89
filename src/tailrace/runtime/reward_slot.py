"""A slot of the reward pool: it runs one reward process, and replaces the process when it ends.

A slot is starting, idle, scoring one response, dying, or broken for good (`broken` says why): a process that does
not load the functions the first time breaks it at once, one that did before may fail three times in a row.
Each given task ends in exactly one of: `on_result`, `on_returned` (its process never started on it), or `abort`. If a
response cannot be read from the payload store, `DamagedStore` is raised into the event loop.
The process of an aborted task may finish it for a short time: most rewards take less time than starting a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.core.ids import TrajectoryId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.worker import Launcher, WorkerHandle, WorkerSpec
from tailrace.store.record_frame import DamagedStore
from tailrace.workers.reward_messages import ResponseUnreadable, RewardInit, RewardReady, RewardRefused, ScoreStarted
from tailrace.workers.reward_tasks import RewardTask

_MAX_FAILED_STARTS = 3
_PICK_UP_S = 30.0
_DROP_GRACE_S = 1.0
_SINGLE_THREADED = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class RewardSlot:
    """Owns one process at a time, its task and its timer. `launch` starts it."""

    def __init__(
        self,
        name: str,
        init: RewardInit,
        *,
        launch: Launcher,
        timeout_s: float,
        start_limit_s: float,
        on_change: Callable[[], None],
        on_result: Callable[[ScoreResult], None],
        on_returned: Callable[[RewardTask, str], None],
    ) -> None:
        self.name = name
        self.task: RewardTask | None = None
        self.since = 0.0
        self.is_dropped = False
        """Whether its task was aborted."""
        self.is_starting = False
        self.has_started = False
        """Whether a process of this slot has loaded the functions at least once."""
        self.broken: str | None = None
        self.num_restarts = 0
        self._launch = launch
        self._spec = WorkerSpec(
            name=name, entry="tailrace.workers.reward_worker:serve", init=init, env=_SINGLE_THREADED
        )
        self._timeout_s, self._start_limit_s = timeout_s, start_limit_s
        self._on_change, self._on_result, self._on_returned = on_change, on_result, on_returned
        self._worker: WorkerHandle | None = None
        self._is_ready = False
        self._is_scoring = False
        self._refusal: str | None = None
        self._num_failed_starts = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        return self._is_ready and self.task is None

    def launch(self) -> None:
        self.is_starting, self._refusal = True, None
        self._worker = self._launch(self._spec, hear=self._receive, lose=self._bury)
        self._arm(self._start_limit_s, self._end_slow_start)

    def give(self, task: RewardTask) -> None:
        assert self.is_idle
        assert self._worker is not None
        self.task, self.since, self._is_scoring = task, _now(), False
        # A process may be unable to start on a task: a thread left behind by an earlier task may never yield.
        self._arm(_PICK_UP_S, self._kill)
        self._worker.send(task)

    def abort(self) -> None:
        """Abort the task. Its process is killed and replaced, unless it finishes within a short time."""
        self.is_dropped = True
        self._arm(_DROP_GRACE_S, self._kill)

    async def stop(self) -> None:
        self._take_task()
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
            case ScoreStarted() if self.is_dropped:
                pass
            case ScoreStarted(trajectory=trajectory) if self._holds(trajectory):
                self.since, self._is_scoring = _now(), True
                self._arm(self._timeout_s, self._end_overdue)
            case ScoreResult(trajectory=trajectory) if self._holds(trajectory):
                if self._take_task() is not None:
                    self._on_result(message)
            case ResponseUnreadable(trajectory=trajectory, reason=reason) if self._holds(trajectory):
                if self._take_task() is not None:
                    raise DamagedStore(reason)
        self._on_change()

    def _bury(self, reason: str) -> None:
        self._worker, self._is_ready = None, False
        task = self._take_task()
        if task is not None and self._is_scoring:
            self._on_result(_failure(task, Outcome.CRASH, reason, _now() - self.since))
        elif task is not None:
            self._on_returned(task, reason)
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
        task = self._take_task()
        assert task is not None
        self._kill()
        detail = f"no score within {self._timeout_s:g} s, so {self.name} was killed"
        self._on_result(_failure(task, Outcome.TIMEOUT, detail, _now() - self.since))

    def _end_slow_start(self) -> None:
        self._refusal = f"{self.name} did not load the reward functions within {self._start_limit_s:g} s"
        self._kill()

    def _kill(self) -> None:
        self._is_ready = False
        if self._worker is not None:
            self._worker.kill()

    def _holds(self, trajectory: TrajectoryId) -> bool:
        return self.task is not None and self.task.trajectory == trajectory

    def _take_task(self) -> RewardTask | None:
        """Remove and return the task; None if there was none or it was aborted."""
        self._disarm()
        task = None if self.is_dropped else self.task
        self.task, self.is_dropped = None, False
        return task

    def _arm(self, seconds: float, callback: Callable[[], None]) -> None:
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(seconds, callback)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _failure(task: RewardTask, outcome: Outcome, detail: str, seconds: float) -> ScoreResult:
    return ScoreResult(trajectory=task.trajectory, outcome=outcome, score=0.0, detail=detail, seconds=seconds)


def _now() -> float:
    return asyncio.get_running_loop().time()
