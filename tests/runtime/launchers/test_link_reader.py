"""One thread reads many links: in order, all of it, and told in the event loop's thread."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest

from contract.worker_story import TOTAL_WAIT_S
from tailrace.runtime.launchers.link_reader import LinkReader, ReadLink


class Heard:
    """A link that is read, and all that is told about it."""

    def __init__(self, reader: LinkReader) -> None:
        ours, theirs = socket.socketpair()
        self.sender, self._ours = Connection(theirs.detach()), ours
        self.messages: list[object] = []
        self.endings: list[str | None] = []
        self.is_main: set[bool] = set()
        self.link = ReadLink(end=ours, loop=asyncio.get_running_loop(), hear=self._hear, close=self._close)
        reader.add(self.link)

    def _hear(self, message: object) -> None:
        self.is_main.add(threading.current_thread() is threading.main_thread())
        self.messages.append(message)

    def _close(self, problem: str | None) -> None:
        self.endings.append(problem)
        self._ours.close()

    async def ending(self) -> str | None:
        async with asyncio.timeout(TOTAL_WAIT_S):
            while not self.endings:
                await asyncio.sleep(0.001)
        return self.endings[0]


@pytest.mark.parametrize("pause_s", [0.0, 0.005])
def test_messages_of_every_link_arrive_in_order_and_before_its_end(pause_s: float) -> None:
    async def scenario() -> None:
        reader = LinkReader(pause_s)
        links = [Heard(reader) for _ in range(5)]
        for number in range(50):
            for link in links:
                link.sender.send(number)
        for link in links:
            link.sender.close()
        for link in links:
            assert await link.ending() is None
            assert link.messages == list(range(50))
            assert link.is_main == {True}
            assert link.link.is_read.wait(TOTAL_WAIT_S)

    asyncio.run(scenario())


def test_what_comes_during_a_pause_is_delivered_in_one_call() -> None:
    async def scenario() -> None:
        gate, pauses, turn = threading.Semaphore(0), threading.Semaphore(0), 0

        def pause(seconds: float) -> None:
            assert seconds == 0.1
            pauses.release()
            gate.acquire(timeout=TOTAL_WAIT_S)

        def count_turns() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turns)

        loop, reader = asyncio.get_running_loop(), LinkReader(0.1, sleep=pause)
        links, turns = [Heard(reader) for _ in range(3)], list[int]()
        for link in links:
            link.link.hear = lambda message: turns.append(turn)
        links[0].sender.send("the first message is not delayed")
        await asyncio.to_thread(pauses.acquire)
        assert len(turns) == 1
        for link in links:
            link.sender.send("gathered")
            link.sender.send("gathered too")
        count_turns()
        gate.release()
        await asyncio.to_thread(pauses.acquire)
        assert len(turns) == 7
        assert len(set(turns[1:])) == 1
        gate.release(100)
        for link in links:
            link.sender.close()
            await link.ending()

    asyncio.run(scenario())


def test_a_message_longer_than_the_socket_holds_is_read_without_a_pause() -> None:
    async def scenario() -> None:
        link = Heard(LinkReader(pause_s=0.001))
        data = bytes(range(256)) * 40_000
        sending = threading.Thread(target=lambda: (link.sender.send(data), link.sender.close()))
        sending.start()
        assert await link.ending() is None
        sending.join()
        assert link.messages == [data]

    asyncio.run(scenario())


def test_a_message_that_arrives_byte_by_byte_and_one_with_a_long_size_are_read() -> None:
    async def scenario() -> None:
        link = Heard(LinkReader())
        content = pickle.dumps("slow")
        for byte in struct.pack("!i", len(content)) + content + struct.pack("!iQ", -1, len(content)) + content:
            os.write(link.sender.fileno(), bytes([byte]))
            await asyncio.sleep(0)
        link.sender.close()
        assert await link.ending() is None
        assert link.messages == ["slow", "slow"]

    asyncio.run(scenario())


def test_an_unreadable_message_ends_the_link_after_the_messages_before_it() -> None:
    async def scenario() -> None:
        reader = LinkReader()
        broken, whole = Heard(reader), Heard(reader)
        broken.sender.send("good")
        broken.sender.send_bytes(b"no pickle")
        problem = await broken.ending()
        assert problem is not None
        assert "UnpicklingError" in problem
        assert broken.messages == ["good"]
        whole.sender.send("still read")
        whole.sender.close()
        assert await whole.ending() is None
        assert whole.messages == ["still read"]

    asyncio.run(scenario())


def test_a_message_that_cannot_be_handled_goes_to_the_exception_handler_and_the_others_are_delivered() -> None:
    async def scenario() -> None:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: broken.append(context))
        link = Heard(LinkReader())

        def fail(message: object) -> None:
            link.messages.append(message)
            raise OSError("disk full")

        link.link.hear = fail
        link.sender.send(1)
        link.sender.send(2)
        link.sender.close()
        await link.ending()
        assert link.messages == [1, 2]
        assert [str(context["exception"]) for context in broken] == ["disk full", "disk full"]

    asyncio.run(scenario())


def test_the_thread_ends_with_its_last_link_and_begins_again_with_the_next() -> None:
    def num_threads() -> int:
        return sum(thread.name == "links-reader" for thread in threading.enumerate())

    async def scenario() -> None:
        reader, before = LinkReader(), num_threads()
        for _ in range(2):
            link = Heard(reader)
            assert num_threads() == before + 1
            link.sender.close()
            await link.ending()
            async with asyncio.timeout(TOTAL_WAIT_S):
                while num_threads() > before:
                    await asyncio.sleep(0.001)

    asyncio.run(scenario())
