"""The reward process: loads the functions, then scores one response after the other on its main thread.

It imports neither torch nor transformers nor numpy (a user's function may), so that a fresh one is there in a
moment after the last one was killed. The memory limit holds for what scoring takes on top of what loading took.
Responses come as tokens or as texts. The text of one that comes as tokens is made before its time limit starts.
Every task is answered, in the order given: by a result, by `ResponseUnreadable`, by `TaskReturned`, or by `TaskSkipped`
if it was called off before the process started on it.
Once a signal to stop has come, it sends no result any more: programs that a function has started may have been ended by
the same signal, which changes the score. It gives the task back and ends; a fresh process takes its place.
After running out of memory the process says so, reports the outcome and ends: who knows what it still holds.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from functools import partial

from tailrace.core.ids import ResponseId
from tailrace.data.detokenizer import Decode
from tailrace.rewards.score_task import ScoreTask
from tailrace.rewards.scoring import Scorer
from tailrace.store.record_frame import DamagedStore
from tailrace.workers.link import Link
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
from tailrace.workers.reward_tasks import RewardTask, TokenTask
from tailrace.workers.stop_signals import has_stop_signal_come

_EXIT_OUT_OF_MEMORY = 71


def serve(link: Link, init: RewardInit) -> None:
    # Before the user's files: they may bring modules of their own with the names of ours.
    decode = None if init.detokenizer is None else init.detokenizer.load()
    try:
        scorer = Scorer.load(init.uses)
    except ValueError as error:
        link.send(RewardRefused(reason=str(error)))
        return
    if init.memory_mb is not None:
        limit_memory(init.memory_mb)
    link.send(RewardReady())
    _score(link, scorer, decode)


def _score(link: Link, scorer: Scorer, decode: Decode | None) -> None:
    waiting = WaitingTasks(link)
    while True:
        task: RewardTask = waiting.take()
        if has_stop_signal_come():
            link.send(TaskReturned(response_id=task.response_id))
            return
        if isinstance(task, TokenTask):
            assert decode is not None, "tokens need a detokenizer"
            try:
                task = task.read(decode)
            except (OSError, DamagedStore) as error:
                link.send(ResponseUnreadable(response_id=task.response_id, reason=str(error)))
                continue
        result = scorer.score(task, on_call=partial(_tell_start, link, task.response_id))
        if has_stop_signal_come():
            link.send(TaskReturned(response_id=task.response_id))
            return
        if scorer.ran_out_of_memory:
            link.send(RewardEnding())
            link.send(result)
            os._exit(_EXIT_OUT_OF_MEMORY)
        link.send(result)


def _tell_start(link: Link, response_id: ResponseId, limit_s: float) -> None:
    link.send(ScoreStarted(response_id=response_id, limit_s=limit_s))


class WaitingTasks:
    """Owns the tasks that have arrived and that the process has not started on."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._tasks: deque[RewardTask | TaskSkipped] = deque()
        """In the order given. One that was called off is replaced by its answer."""

    def take(self) -> RewardTask:
        """Wait for a task and remove it. Tasks before it that were called off are answered."""
        while True:
            self._read()
            first = self._tasks.popleft()
            if not isinstance(first, TaskSkipped):
                return first
            self._link.send(first)

    def _read(self) -> None:
        """Read all messages that have arrived. If no task waits, wait for one."""
        while (message := self._link.receive(0 if self._tasks else None)) is not None:
            if isinstance(message, SkipTasks):
                self._tasks = deque(_unless_in(message, task) for task in self._tasks)
            else:
                assert isinstance(message, ScoreTask | TokenTask)
                self._tasks.append(message)


def _unless_in(skip: SkipTasks, task: RewardTask | TaskSkipped) -> RewardTask | TaskSkipped:
    return TaskSkipped(response_id=task.response_id) if task.response_id in skip.responses else task


def limit_memory(memory_mb: int) -> None:
    """Allow this process so much more address space than it has now."""
    if sys.platform != "linux":
        return  # other systems do not tell or do not enforce it
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    limit = taken + memory_mb * 1024 * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
