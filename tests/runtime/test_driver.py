"""The driver owns time: it stamps once, records before it performs, and wakes the core when asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.runtime.driver import Driver


class Script:
    """A machine that answers the n-th event with the n-th list of commands."""

    def __init__(self, *answers: list[do.Command]) -> None:
        self.answers, self.seen = list(answers), []

    def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
        self.seen.append((type(event).__name__, now))
        return self.answers.pop(0)


FINISH = do.FinishRun(is_complete=True, reason="enough")
STOP = ev.StopRequested(reason="x")


def drive(machine: Script, *, start_at: float = 0.0) -> tuple[do.FinishRun, list[Entry], list[tuple[do.Command, int]]]:
    entries: list[Entry] = []
    performed: list[tuple[do.Command, int]] = []

    async def run() -> do.FinishRun:
        driver = Driver(
            machine,
            perform=lambda command: performed.append((command, len(entries))),
            record=entries.extend,
            warn=pytest.fail,
            start_at=start_at,
        )
        return await driver.run(STOP)

    return asyncio.run(run()), entries, performed


def test_an_entry_is_recorded_before_its_commands_are_performed() -> None:
    start = do.StartInstance(instance=0)
    finish, entries, performed = drive(Script([start, FINISH]))
    assert finish == FINISH
    assert performed == [(start, 1)]
    assert entries[0].commands == (start, FINISH)


def test_a_timer_comes_back_as_an_event_not_before_its_time() -> None:
    machine = Script([do.SetTimer(at=0.05)], [FINISH])
    _, entries, _ = drive(machine)
    assert isinstance(entries[1].event, ev.TimerFired)
    assert entries[1].now >= 0.05


def test_a_new_timer_replaces_the_old_one() -> None:
    machine = Script([do.SetTimer(at=60.0), do.SetTimer(at=0.01)], [FINISH])
    _, entries, _ = drive(machine)
    assert len(entries) == 2


def test_run_time_goes_on_where_an_earlier_part_ended() -> None:
    _, entries, _ = drive(Script([FINISH]), start_at=100.0)
    assert 100.0 <= entries[0].now < 160.0


def test_the_recorded_time_is_the_time_the_machine_saw() -> None:
    machine = Script([do.SetTimer(at=0.01)], [FINISH])
    _, entries, _ = drive(machine)
    assert [now for _, now in machine.seen] == [entry.now for entry in entries]


def test_an_adapter_that_breaks_ends_the_run_with_its_error() -> None:
    async def run() -> None:
        driver = Driver(Script([]), perform=print, record=print, warn=pytest.fail)
        driver.fail(OSError("disk full"))
        await driver.run(STOP)

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(run())


def test_a_slow_record_leaves_the_loop_free_and_still_comes_first() -> None:
    order: list[str] = []

    async def run() -> None:
        gate = threading.Event()

        def record(entries: Sequence[Entry]) -> None:
            gate.wait()
            order.append("recorded")

        driver = Driver(
            Script([do.StartInstance(instance=0), FINISH]),
            perform=lambda _: order.append("done"),
            record=record,
            warn=pytest.fail,
        )
        asyncio.get_running_loop().call_later(0.01, gate.set)  # only a free loop can open the gate
        await driver.run(STOP)

    asyncio.run(run())
    assert order == ["recorded", "done"]


def test_what_a_command_must_wait_for_is_over_before_the_next_event() -> None:
    order: list[str] = []

    async def run() -> None:
        async def save() -> None:
            order.append(await driver.ask(lambda: "saved between two events"))

        def record(entries: Sequence[Entry]) -> None:
            order.extend(type(entry.event).__name__ for entry in entries)

        machine = Script([do.SaveCheckpoint(version=0)], [FINISH])
        driver = Driver(machine, perform=lambda _: save(), record=record, warn=pytest.fail)
        driver.post(ev.TimerFired())
        await driver.run(STOP)

    asyncio.run(run())
    assert order == ["TimerFired", "saved between two events", "StopRequested"]


def test_a_record_that_cannot_be_written_ends_the_run_and_nothing_is_performed() -> None:
    def record(entries: Sequence[Entry]) -> None:
        raise OSError("disk full")

    async def run() -> None:
        driver = Driver(
            Script([do.StartInstance(instance=0)]),
            perform=lambda _: pytest.fail("performed"),
            record=record,
            warn=pytest.fail,
        )
        await driver.run(STOP)

    with pytest.raises(OSError, match="disk full"):
        asyncio.run(run())


def decided_together(machine: Script, *events: ev.Event | Exception) -> tuple[list[list[str]], list[do.Command]]:
    """Drive a machine with events that wait together. Return the names of the events of each record, and the commands
    that were performed."""
    records: list[list[str]] = []
    performed: list[do.Command] = []

    async def run() -> None:
        driver = Driver(
            machine,
            perform=performed.append,
            record=lambda entries: records.append([type(entry.event).__name__ for entry in entries]),
            warn=pytest.fail,
        )
        for event in events:
            driver.fail(event) if isinstance(event, Exception) else driver.post(event)
        await driver.run(STOP)

    try:
        asyncio.run(run())
    except (OSError, ZeroDivisionError) as error:
        records.append([type(error).__name__])
    return records, performed


def test_events_that_wait_together_are_decided_in_order_and_recorded_once() -> None:
    first, second = do.StartInstance(instance=0), do.StartInstance(instance=1)
    machine = Script([first], [second], [FINISH])
    records, performed = decided_together(machine, ev.TimerFired(), ev.TimerFired())
    assert records == [["TimerFired", "TimerFired", "StopRequested"]]
    assert performed == [first, second]


def test_no_event_is_decided_after_the_one_that_ends_the_run() -> None:
    records, _ = decided_together(Script([FINISH]), ev.TimerFired(), ev.TimerFired())
    assert records == [["TimerFired"]]


def test_an_error_ends_the_run_after_the_events_that_came_before_it() -> None:
    start = do.StartInstance(instance=0)
    records, performed = decided_together(Script([start]), ev.TimerFired(), OSError("disk full"), ev.TimerFired())
    assert records == [["TimerFired"], ["OSError"]]
    assert performed == [start]


def test_if_the_machine_raises_the_events_before_are_in_the_journal_and_nothing_is_performed() -> None:
    class Breaks(Script):
        def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
            return super().handle(event, now=now) if self.answers else [][1 // 0]

    records, performed = decided_together(Breaks([do.StartInstance(instance=0)]), ev.TimerFired(), ev.TimerFired())
    assert records == [["TimerFired"], ["ZeroDivisionError"]]
    assert performed == []


def test_a_record_that_hangs_when_the_run_ends_is_left_behind_and_the_user_is_told() -> None:
    said: list[str] = []

    async def run() -> None:
        begun, gate = threading.Event(), threading.Event()

        def record(entries: Sequence[Entry]) -> None:
            begun.set()
            gate.wait()

        driver = Driver(Script([FINISH]), perform=print, record=record, warn=said.append, close_limit_s=0.01)
        running = asyncio.create_task(driver.run(STOP))
        await asyncio.to_thread(begun.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        gate.set()

    asyncio.run(run())
    assert said == ["the thread 'decide' did not end within 0.01 s and is left behind: its job hangs"]
