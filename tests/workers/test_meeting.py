"""How ranks meet: with real processes and sockets."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from contract.worker_story import Story
from tailrace.runtime.launchers.process import WorkerProcess
from tailrace.runtime.launchers.worker import WorkerSpec
from tailrace.workers.messages import Meeting, TrainingInit
from workers.test_training_worker import model_init

pytestmark = pytest.mark.slow


def test_ranks_of_this_machine_listen_on_loopback_alone_and_turn_strangers_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        stories = [Story(), Story()]
        workers = [start(tmp_path, replace(init(), rank=rank), stories[rank]) for rank in range(2)]
        meeting = await stories[0].message(0)
        assert isinstance(meeting, Meeting)
        silent, talkative = (socket.create_connection((meeting.host, meeting.port)) for _ in range(2))
        talkative.sendall(b"\0\0\0\x20" + b"x" * 4096)
        workers[1].send(meeting)
        for story, first in ((stories[0], 1), (stories[1], 0)):
            total, gathered, addresses = await story.message(first)  # type: ignore[misc]
            assert total == 3.0
            assert gathered == [{"rank": rank, "words": ["ä", None, 0.1]} for rank in range(2)]
            assert addresses == {"127.0.0.1"}
        await asyncio.to_thread(read_to_the_end, talkative)
        silent.close()
        await asyncio.gather(*(worker.stop(grace_s=0.0) for worker in workers))

    asyncio.run(scenario())


def read_to_the_end(connection: socket.socket) -> None:
    connection.settimeout(60.0)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    connection.close()


def init() -> TrainingInit:
    return TrainingInit(models=(model_init("policy", "unused"),), num_shards=2)


def start(folder: Path, given: TrainingInit, story: Story) -> WorkerProcess:
    spec = WorkerSpec(name=f"training-{given.rank}", entry="workers.meeting_rank:serve", init=given)
    return WorkerProcess.start(spec, log=folder / f"{given.rank}.log", hear=story.hear, lose=story.lose)
