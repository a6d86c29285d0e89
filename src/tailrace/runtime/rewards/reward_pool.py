"""Reward processes that can be killed. They make one part of the score: what functions return, or what test cases say.
Every submitted response gets exactly one result.

* Each process scores one response at a time. Where scores are quick, some more wait inside it; behind a slow one they
  are given to other processes, so a slow one delays only itself.
* Each function has a time limit, which runs from the moment it is called; the start of an interpreter is not charged.
  Past the limit the process is killed, the outcome is `timeout`, and a fresh process takes its place.
* A process that dies while scoring: outcome `crash` for the response that it was scoring. Responses that waited inside
  the process are given to others.
* Nothing waits for ever. If process after process ends just before it starts on a response, the response gets `crash`.
  Where no process can be started any more, every response gets `crash` with the reason.
* Functions are loaded and checked in the processes themselves; `start` raises `ValueError` where that fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tailrace.config.reward_settings import RewardSettings
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome, Part
from tailrace.data.detokenizer import Detokenizer
from tailrace.rewards.assignment import default_uses
from tailrace.rewards.score_task import RewardUse, ScoreResult
from tailrace.runtime.launchers.worker import Launcher
from tailrace.runtime.rewards.case_limits import NewestLimits
from tailrace.runtime.rewards.reward_slot import LostProcess, RewardSlot
from tailrace.workers.reward_messages import RewardInit
from tailrace.workers.reward_tasks import RewardTask

_MAX_LOSSES = 12
"""A response gets `crash` when this many processes ended just before they started on it."""
_MAX_FRESH_LOSSES = 3
"""The same for processes that had scored nothing before. In others, an earlier response may have done the harm."""
_WORKERS = {Part.FUNCTION: "reward", Part.TESTS: "tests"}
"""How the names of the processes of a part begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningScore:
    """A response that a worker is scoring, or is about to."""

    response_id: ResponseId
    worker: str
    age_s: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    running: tuple[RunningScore, ...]
    num_queued: int
    num_starting: int
    """Processes that are loading the functions."""
    num_restarts: int
    """Processes that were replaced since the pool started."""


class RewardPool:
    """Owns the reward processes and the queue before them. Use it from one event loop."""

    def __init__(
        self,
        settings: RewardSettings,
        *,
        launch: Launcher,
        on_result: Callable[[ScoreResult], None],
        part: Part = Part.FUNCTION,
        uses: Sequence[RewardUse] = (),
        columns: Collection[str] = ("prompt", "answer"),
        detokenizer: Detokenizer | None = None,
        start_limit_s: float = 600.0,
        gather_s: float = 0.0,
        limits: NewestLimits | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`uses` are the functions of the run; without them, those of the settings on rows that all have `columns`.
        Only a pool with a `detokenizer` takes a `TokenTask`. `gather_s`: see `WorkerSpec`. `limits`: of test
        cases; each response gets those that it has when a process is given it."""
        self._on_result, self._limits = on_result, limits or NewestLimits()
        self._queue: deque[RewardTask] = deque()
        self._submitted_at: dict[ResponseId, float] = {}
        self._losses: dict[ResponseId, list[LostProcess]] = {}
        """Processes that ended just before they started on a response, by response."""
        self._started: asyncio.Future[None] | None = None
        uses = tuple(uses) or default_uses(settings, tuple(columns))
        init = RewardInit(uses=uses, memory_mb=settings.memory_mb, detokenizer=detokenizer)
        self._slots = [
            RewardSlot(
                f"{_WORKERS[part]}-{number}",
                init,
                launch=launch,
                start_limit_s=start_limit_s,
                gather_s=gather_s,
                on_change=self._change,
                on_result=self._finish,
                on_returned=self._take_back,
                say=say,
            )
            for number in range(num_workers(settings, part))
        ]

    async def start(self) -> None:
        """Start every process; `ValueError` with the reason if the functions cannot be loaded."""
        self._started = asyncio.get_running_loop().create_future()
        for slot in self._slots:
            slot.launch()
        try:
            await self._started
        except BaseException:  # refused or cancelled: either way no process may stay behind
            await self.stop()
            raise

    def submit(self, task: RewardTask) -> None:
        self._submitted_at[task.response_id] = asyncio.get_running_loop().time()
        self._queue.append(task)
        self._dispatch()

    def abort(self, responses: Iterable[ResponseId]) -> None:
        """Abort responses: each that has no result yet gets the outcome `aborted` at once. A process that is scoring
        one of them is killed and replaced, unless it finishes within a short time."""
        unwanted = set(responses)
        called_off = [task.response_id for task in self._queue if task.response_id in unwanted]
        self._queue = deque(task for task in self._queue if task.response_id not in unwanted)
        for slot in self._slots:
            called_off += slot.abort(unwanted)
        for response in called_off:
            self._finish(ScoreResult(response_id=response, outcome=Outcome.ABORTED, score=0.0, seconds=0.0))

    async def stop(self) -> None:
        """End every process. No result is delivered after this."""
        self._queue.clear()
        await asyncio.gather(*(slot.stop() for slot in self._slots))

    def status(self) -> PoolStatus:
        now = asyncio.get_running_loop().time()
        running = [
            RunningScore(
                response_id=slot.task.response_id, worker=slot.name, age_s=now - slot.since, limit_s=slot.limit_s
            )
            for slot in self._slots
            if slot.task is not None
        ]
        return PoolStatus(
            running=tuple(running),
            num_queued=len(self._queue),
            num_starting=sum(slot.is_starting for slot in self._slots),
            num_restarts=sum(slot.num_restarts for slot in self._slots),
        )

    def _change(self) -> None:
        self._dispatch()
        if self._started is None or self._started.done():
            return
        broken = self._broken()
        if broken:
            self._started.set_exception(ValueError(broken[0]))
        elif all(slot.has_started for slot in self._slots):
            self._started.set_result(None)

    def _dispatch(self) -> None:
        while self._queue and (free := [slot for slot in self._slots if slot.has_room]):
            task = self._queue.popleft()
            min(free, key=_num_given).give(replace(task, case_limits=self._limits.of(task.response_id)))
        if self._queue and len(broken := self._broken()) == len(self._slots):
            while self._queue:
                self._fail(self._queue.popleft(), broken[0])

    def _broken(self) -> list[str]:
        return [slot.broken for slot in self._slots if slot.broken is not None]

    def _take_back(self, task: RewardTask, loss: LostProcess | None) -> None:
        if loss is not None:
            losses = self._losses.setdefault(task.response_id, [])
            losses.append(loss)
            num_fresh = sum(not loss.had_scored for loss in losses)
            if num_fresh >= _MAX_FRESH_LOSSES or len(losses) >= _MAX_LOSSES:
                self._fail(task, f"{loss.reason}; {len(losses)} processes ended before they started on this response")
                return
        self._queue.appendleft(task)

    def _fail(self, task: RewardTask, reason: str) -> None:
        self._finish(
            ScoreResult(response_id=task.response_id, outcome=Outcome.CRASH, score=0.0, detail=reason, seconds=0.0)
        )

    def _finish(self, result: ScoreResult) -> None:
        self._losses.pop(result.response_id, None)
        self._limits.forget(result.response_id)
        waited_s = asyncio.get_running_loop().time() - self._submitted_at.pop(result.response_id)
        self._on_result(replace(result, queued_s=max(0.0, waited_s - result.seconds)))


def num_workers(settings: RewardSettings, part: Part) -> int:
    """Reward processes of this part."""
    return (settings.code_tests.workers if part is Part.TESTS else None) or settings.workers


def _num_given(slot: RewardSlot) -> int:
    return slot.num_given
