"""The live display on a terminal, and plain lines everywhere else."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from core.world import World
from observe.test_progress import ROW
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Schedule
from tailrace.observe.display.display import PlainDisplay, open_display
from tailrace.observe.display.live import LiveDisplay, sparkline
from tailrace.observe.metrics.rows import Metrics

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=4, num_instances=2)
INSTANCE = InstanceId(0)
LONG_ROW = ROW | {"response_length/clip_ratio": 0.125}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def picture(display: LiveDisplay) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(display.render())
    return console.export_text()


def live(terminal: Terminal, max_steps: int = 60) -> LiveDisplay:
    return LiveDisplay(max_steps, Console(file=terminal, width=100, force_terminal=True))


def test_a_terminal_gets_the_live_display_and_a_file_gets_lines(terminal: Terminal) -> None:
    display = open_display(4, print, stream=terminal)
    display.close()
    assert isinstance(display, LiveDisplay)
    assert isinstance(open_display(4, print, stream=io.StringIO()), PlainDisplay)


def test_the_picture_shows_step_reward_lengths_speed_and_failures(terminal: Terminal) -> None:
    display = live(terminal)
    display.row({"step": 0, "eval/heldout/avg@1": 0.25})
    display.row(LONG_ROW | {"timing_s/eval": 0.25})
    text = picture(display)
    display.close()
    for words in (
        "7/60",
        "ETA 1:59",
        "0.500",
        "heldout/avg@1",
        "p50 18  p95 120  max 384  clipped 12.5%",
        "4,200 tok/s  2.00 s a step (gen 1.50, train 0.40)  eval 0.25 s",
        "2 failed in the last step",
    ):
        assert words in text


def test_a_wait_is_shown_with_its_age_while_it_lasts(terminal: Terminal) -> None:
    display = live(terminal)
    display.waits([Wait(what="reward of x", since=2.0, limit_s=30.0)], now=14.0)
    assert "reward of x: 12 s (limit 30 s)" in picture(display)
    display.waits([], now=15.0)
    assert "reward of x" not in picture(display)
    display.close()


def test_the_load_of_every_instance_follows_the_journal(terminal: Terminal) -> None:
    world = World(SCHEDULE, random.Random(4))
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    display = live(terminal, max_steps=4)
    metrics, fed = Metrics(), 0
    while world.verdict is None:
        world.advance()
        for entry in world.entries[fed:]:
            display.entry(entry)
            for row in metrics.feed(entry):
                display.row(row)
        fed = len(world.entries)
        text = picture(display)
        held = {
            i.id: len(i.running) for i in world.coordinator.rooms.fleet.instances.values() if i.phase.value == "ready"
        }
        for number, count in held.items():
            line = next(line for line in text.splitlines() if f"instance {number}" in line)
            assert (f"{count} responses" if count else "idle") in line
    display.close()
    assert "4/4" in picture(display)


def test_a_response_that_was_called_off_is_no_load(terminal: Terminal) -> None:
    called_off = ResponseId(GroupId("train", 0, 0), 0)
    submit = do.Submit(instance=INSTANCE, dispatches=(do.Dispatch(response=called_off, start=0),))
    aborted = (ev.Aborted(response=called_off, length=3),)
    display = live(terminal)
    display.entry(Entry(now=1.0, event=ev.TimerFired(), commands=(submit,)))
    assert "1 responses" in picture(display)
    display.entry(Entry(now=2.0, event=ev.ResponsesAborted(instance=INSTANCE, aborted=aborted), commands=()))
    display.close()
    assert "idle" in picture(display)


def test_what_is_said_stays_above_the_picture_as_it_was_said(terminal: Terminal) -> None:
    display = live(terminal)
    display.say("train: 4000 prompts [bold]from[/bold] builtin:arith-train")
    display.close()
    assert "train: 4000 prompts [bold]from[/bold] builtin:arith-train" in terminal.getvalue()


def test_plain_lines_name_a_long_wait_at_most_every_ten_seconds() -> None:
    said: list[str] = []
    display = PlainDisplay(60, said.append)
    wait = Wait(what="reward of x", since=0.0, limit_s=30.0)
    for now in range(26):
        display.waits([wait], now=float(now))
    display.row(ROW)
    assert said[:2] == [
        "waiting for reward of x: 10 s (limit 30 s)",
        "waiting for reward of x: 20 s (limit 30 s)",
    ]
    assert said[2].startswith("step  7/60")


def test_a_sparkline_spans_the_least_and_the_greatest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "\u2581\u2585\u2588"
    assert sparkline([3.0, 3.0]) == "\u2581\u2581"
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(99)])) == 40
