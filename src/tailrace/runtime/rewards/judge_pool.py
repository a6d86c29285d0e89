"""Judges, as workers that can be killed. They make one part of the score: what a model says about a response. Every
submitted response gets exactly one result.

* A judge computes what waits inside it in passes, so it is given several responses ahead. Each judge gets at most its
  share of what is not finished: one that starts late finds work.
* The time limit of a response begins with its pass, or with its request to a server. Past it the outcome is `timeout`.
* If a judge ends in a pass, the responses of the pass are tried again. From the second time on each of them is given
  to a judge alone, so that one that does harm harms no other. The third time its outcome is `crash`.
* Nothing waits for ever. Where no judge can be started any more, every response gets `crash` with the reason.
* The model is loaded and checked in the judges; `start` raises `ValueError` where that fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import RewardUse, ScoreResult
from tailrace.rewards.scoring import weighted
from tailrace.runtime.launchers.worker import Launcher, WorkerSpec
from tailrace.runtime.rewards.judge_slot import JudgeLimits, JudgeSlot, failure
from tailrace.runtime.rewards.reward_pool import PoolStatus, RunningScore
from tailrace.workers.judge_messages import JudgeInit, UrlJudgeInit
from tailrace.workers.reward_tasks import RewardTask

PICK_UP_S = 30.0
MOST_AHEAD = 64
"""Most responses that a judge is given, those of its pass included."""
_ALONE_FROM = 2
_MAX_LOSSES = 3
"""A response gets `crash` when this many judges ended in its pass. From `_ALONE_FROM` on it is judged alone."""
_ENTRIES = {
    JudgeInit: "tailrace.workers.judge_worker:serve",
    UrlJudgeInit: "tailrace.workers.url_judge_worker:serve",
}


class JudgePool:
    """Owns the judges and the queue before them. Use it from one event loop."""

    def __init__(
        self,
        init: object,
        *,
        use: RewardUse,
        num_judges: int,
        limits: JudgeLimits,
        launch: Launcher,
        on_result: Callable[[ScoreResult], None],
        say: Callable[[str], None],
        most_ahead: int = MOST_AHEAD,
        env: Callable[[int], Mapping[str, str]] = lambda number: {},
        recover: Callable[[], Awaitable[None]] | None = None,
        entry: str | None = None,
    ) -> None:
        """`init`: a `JudgeInit` or `UrlJudgeInit`, or what `entry` takes. `env`: environment variables of the judge
        with this number. `recover` is awaited before a lost judge is started again."""
        self._use, self._on_result, self._most_ahead = use, on_result, most_ahead
        self._queue: deque[RewardTask] = deque()
        self._submitted_at: dict[ResponseId, float] = {}
        self._losses: dict[ResponseId, int] = {}
        """Judges that ended in the pass of a response, by response."""
        self._started: asyncio.Future[None] | None = None
        self._slots = [
            JudgeSlot(
                WorkerSpec(name=f"judge-{number}", entry=entry or _ENTRIES[type(init)], init=init, env=env(number)),
                launch=launch,
                limits=limits,
                recover=recover,
                say=say,
                on_change=self._change,
                on_result=self._finish,
                on_returned=self._take_back,
            )
            for number in range(num_judges)
        ]
        self._limits = limits

    async def start(self) -> None:
        """Start every judge; `ValueError` with the reason if a judge cannot do its work."""
        self._started = asyncio.get_running_loop().create_future()
        for slot in self._slots:
            slot.launch()
        try:
            await self._started
        except BaseException:  # refused or cancelled: either way no process may stay behind
            await self.stop()
            raise

    def submit(self, task: RewardTask) -> None:
        self._submitted_at[task.response_id] = _now()
        self._queue.append(task)
        self._dispatch()

    def abort(self, responses: Iterable[ResponseId]) -> None:
        """Abort responses: each that has no result yet gets the outcome `aborted` at once. A pass is not ended for
        it."""
        unwanted = set(responses)
        called_off = [task for task in self._queue if task.response_id in unwanted]
        self._queue = deque(task for task in self._queue if task.response_id not in unwanted)
        for slot in self._slots:
            called_off += slot.abort(unwanted)
        for task in called_off:
            self._finish(task, failure(task, Outcome.ABORTED, "", 0.0))

    def kill_all(self) -> None:
        """Kill all judges and start them again: their GPU must be left by all processes. No response loses by it."""
        for slot in self._slots:
            slot.kill_with_others()
        self._dispatch()

    async def stop(self) -> None:
        """End every judge. No result is delivered after this."""
        self._queue.clear()
        await asyncio.gather(*(slot.stop() for slot in self._slots))

    def status(self) -> PoolStatus:
        now = _now()
        given = [(slot.name, each) for slot in self._slots for each in slot.given.values() if not each.is_dropped]
        running = [
            RunningScore(
                response_id=each.task.response_id,
                worker=name,
                age_s=now - each.started,
                limit_s=self._limits.pass_s,
            )
            for name, each in given
            if each.started is not None
        ]
        return PoolStatus(
            running=tuple(running),
            num_queued=len(self._queue) + len(given) - len(running),
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
        while self._queue and (slot := self._slot_for(self._queue[0])) is not None:
            slot.give(self._queue.popleft())
        for slot in self._slots:
            slot.send_given()
        if self._queue and len(broken := self._broken()) == len(self._slots):
            while self._queue:
                self._fail(self._queue.popleft(), broken[0])

    def _slot_for(self, task: RewardTask) -> JudgeSlot | None:
        """The judge with the fewest responses, of those that may take this one; None: it must wait."""
        if self._is_alone(task.response_id):
            most = 1
        else:
            num_working = len(self._slots) - len(self._broken())
            share = -(-len(self._submitted_at) // max(1, num_working))
            most = max(1, min(self._most_ahead, share))
        # A judge may still compute an earlier order for the same response, which was aborted.
        free = [slot for slot in self._slots if slot.has_room(most) and task.response_id not in slot.given]
        free = [slot for slot in free if not any(map(self._is_alone, slot.given))]
        return min(free, key=lambda slot: len(slot.given), default=None)

    def _is_alone(self, response: ResponseId) -> bool:
        return self._losses.get(response, 0) >= _ALONE_FROM

    def _broken(self) -> list[str]:
        return [slot.broken for slot in self._slots if slot.broken is not None]

    def _take_back(self, task: RewardTask, loss: str | None) -> None:
        if loss is not None:
            losses = self._losses[task.response_id] = self._losses.get(task.response_id, 0) + 1
            if losses >= _MAX_LOSSES:
                self._fail(task, f"{loss}; {losses} judges ended while they had this response")
                return
        self._queue.appendleft(task)

    def _fail(self, task: RewardTask, reason: str) -> None:
        self._finish(task, failure(task, Outcome.CRASH, reason, 0.0))

    def _finish(self, task: RewardTask, result: ScoreResult) -> None:
        self._losses.pop(task.response_id, None)
        waited_s = _now() - self._submitted_at.pop(task.response_id)
        result = replace(result, queued_s=max(0.0, waited_s - result.seconds))
        self._on_result(weighted(result, self._use, task.source))


def _now() -> float:
    return asyncio.get_running_loop().time()
