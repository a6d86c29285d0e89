"""What a worker says reaches the event loop in order, and its end once."""

from __future__ import annotations

import asyncio
import threading

from tailrace.runtime.launchers.delivery import Delivery


class Ears:
    """Notes what is delivered, and in which thread."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.threads: set[threading.Thread] = set()
        self.delivery = Delivery(hear=self._note, lose=self._note)

    def _note(self, what: object) -> None:
        self.heard.append(what)
        self.threads.add(threading.current_thread())


def test_messages_of_another_thread_come_in_order_and_nothing_comes_behind_the_end() -> None:
    async def story() -> Ears:
        ears = Ears()

        def speak() -> None:
            for number in range(100):
                ears.delivery.message(number)
            for reason in ("an end", "another end"):
                ears.delivery.end(reason)
                ears.delivery.message("too late")

        threading.Thread(target=speak).start()
        assert await ears.delivery.wait(timeout_s=30)
        await asyncio.sleep(0.01)
        return ears

    ears = asyncio.run(story())
    assert ears.heard == [*range(100), "an end"]
    assert ears.threads == {threading.current_thread()}
    assert ears.delivery.is_ended


def test_after_silence_the_end_is_waited_for_and_not_told() -> None:
    async def story() -> list[object]:
        ears = Ears()
        ears.delivery.message("said before, not delivered yet")
        ears.delivery.silence()
        assert not await ears.delivery.wait(timeout_s=0.01)
        ears.delivery.end("an end")
        assert await ears.delivery.wait()
        return ears.heard

    assert asyncio.run(story()) == []


def test_a_worker_that_ends_after_the_event_loop_has_nobody_to_tell() -> None:
    async def story() -> Ears:
        return Ears()

    ears = asyncio.run(story())
    ears.delivery.message("a message")
    ears.delivery.end("an end")
    assert ears.heard == []
