"""The reward process: loads the functions, then scores one response after the other on its main thread.

It imports neither torch nor transformers nor numpy (a user's function may), so that a fresh one is there in a
moment after the last one was killed. The memory limit holds for what scoring takes on top of what loading took.
Responses come as tokens or as texts. The text of one that comes as tokens is made before its time limit starts.
After running out of memory the process reports the outcome and ends: who knows what it still holds.
"""

from __future__ import annotations

import os
import sys

from tailrace.data.detokenizer import Decode
from tailrace.rewards.score_task import ScoreTask
from tailrace.rewards.scoring import Scorer
from tailrace.store.record_frame import DamagedStore
from tailrace.workers.link import Link
from tailrace.workers.reward_messages import ResponseUnreadable, RewardInit, RewardReady, RewardRefused, ScoreStarted
from tailrace.workers.reward_tasks import TokenTask

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
    while True:
        task = link.receive()
        if isinstance(task, TokenTask):
            assert decode is not None, "tokens need a detokenizer"
            try:
                task = task.read(decode)
            except (OSError, DamagedStore) as error:
                link.send(ResponseUnreadable(trajectory=task.trajectory, reason=str(error)))
                continue
        assert isinstance(task, ScoreTask)
        link.send(ScoreStarted(trajectory=task.trajectory))
        link.send(scorer.score(task))
        if scorer.ran_out_of_memory:
            os._exit(_EXIT_OUT_OF_MEMORY)


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
