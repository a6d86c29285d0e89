"""What every kind of worker must do. A test file of one kind imports these tests and provides a fixture ``launch``."""

from __future__ import annotations

import asyncio

from contract.worker_story import Story, moments
from tailrace.runtime.launchers.worker import Launcher, WorkerHandle, WorkerSpec


def start(launch: Launcher, entry: str, story: Story, init: object = "init") -> WorkerHandle:
    spec = WorkerSpec(name="worker-0", entry=f"contract.small_workers:{entry}", init=init)
    return launch(spec, hear=story.hear, lose=story.lose)


def test_messages_arrive_in_order_and_init_is_the_first(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "echo", story, init={"a": 1})
        for number in range(100):
            worker.send(number)
        await story.message(100)
        assert story.messages == [("echo", {"a": 1}), *(("echo", number) for number in range(100))]
        assert worker.is_alive
        await worker.stop(grace_s=20.0)
        assert not worker.is_alive
        assert story.endings == []

    asyncio.run(scenario())


def test_sending_much_to_a_worker_that_does_not_read_does_not_block(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "read_late", story, init=32)
        for _ in range(32):
            worker.send(bytes(1_000_000))
        assert await story.message(0) == 1_000_000
        await worker.stop(grace_s=20.0)

    asyncio.run(scenario())


def test_a_worker_may_wait_for_a_message_or_not(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "tell_patience", story)
        assert await story.message(0) == (None, None)
        worker.send("late")
        assert await story.message(1) == "late"
        await story.ending()

    asyncio.run(scenario())


def test_a_worker_that_fails_is_lost_once_and_the_reason_names_the_error(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "fail", story)
        reason = await story.ending()
        assert "worker 'worker-0'" in reason
        assert reason.endswith(": ValueError: the disk is made of cheese")
        assert story.messages == ["last words"]
        assert not worker.is_alive
        await moments()
        assert len(story.endings) == 1

    asyncio.run(scenario())


def test_a_worker_that_returns_is_lost(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        start(launch, "leave", story)
        assert "worker 'worker-0'" in await story.ending()
        assert story.messages == ["last words"]

    asyncio.run(scenario())


def test_a_worker_whose_function_cannot_be_found_is_lost(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        start(launch, "no_such_worker", story)
        assert "no_such_worker" in await story.ending()

    asyncio.run(scenario())


def test_a_killed_worker_is_lost_once_and_says_nothing_afterwards(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "talk", story)
        await story.message(3)
        worker.kill()
        worker.kill()
        assert "worker 'worker-0' was killed" in await story.ending()
        num_heard = len(story.messages)
        worker.kill()
        worker.send("too late")
        await moments()
        assert len(story.messages) == num_heard
        assert len(story.endings) == 1
        assert not worker.is_alive

    asyncio.run(scenario())


def test_stop_ends_a_worker_that_does_not_listen_and_tells_nothing(launch: Launcher) -> None:
    async def scenario() -> None:
        for entry in ("sleep", "talk"):
            story = Story()
            worker = start(launch, entry, story)
            await story.message(0)
            stopping = asyncio.ensure_future(worker.stop(grace_s=0.1))
            await asyncio.sleep(0)
            num_heard = len(story.messages)
            await stopping
            await moments()
            assert not worker.is_alive
            assert len(story.messages) == num_heard
            assert story.endings == []

    asyncio.run(scenario())


def test_stop_after_the_end_returns_at_once(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "leave", story)
        await story.ending()
        await worker.stop(grace_s=1000.0)
        assert len(story.endings) == 1

    asyncio.run(scenario())


def test_an_unreadable_message_ends_the_worker_with_a_reason(launch: Launcher) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(launch, "babble", story)
        assert "sent a message that cannot be read" in await story.ending()
        assert not worker.is_alive

    asyncio.run(scenario())


def test_worker_and_controller_never_share_an_object(launch: Launcher) -> None:
    async def scenario() -> None:
        story, init, message = Story(), [0], [0]
        worker = start(launch, "change", story, init=init)
        worker.send(message)
        message.append(3)
        assert await story.message(0) == ([0, 1], [0, 2])
        assert (init, message) == ([0], [0, 3])

    asyncio.run(scenario())
