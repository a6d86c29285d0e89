"""A display of a resumed run knows what came before, with a checkpoint and without one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from runtime.record.test_recorder import SCHEDULE, append, directory, entries, fail, record
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.display.display import Display, PlainDisplay
from tailrace.observe.display.live import LiveDisplay
from tailrace.observe.metrics.rows import Metrics
from tailrace.observe.sinks import Sinks
from tailrace.runtime.record.recorder import Recorder
from tailrace.runtime.record.resume import recall
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.store.payload_store import PayloadStore

__all__ = ["directory", "entries"]

Open = Callable[[list[str]], Display]


def live(said: list[str]) -> LiveDisplay:
    return LiveDisplay(SCHEDULE.max_steps, Console(file=io.StringIO(), width=100, force_terminal=True))


def plain(said: list[str]) -> PlainDisplay:
    return PlainDisplay(SCHEDULE.max_steps, said.append)


def crash_places(entries: list[Entry]) -> list[int]:
    """After the first reward of each step: responses have ended and will not be submitted again."""
    steps = [number for number, entry in enumerate(entries) if isinstance(entry.event, ev.StepTrained)]
    scored = [number for number, entry in enumerate(entries) if isinstance(entry.event, ev.ResponsesScored)]
    return [next(number + 1 for number in scored if number > step) for step in steps[:-1]]


@pytest.mark.parametrize("open_display", [live, plain], ids=["live", "lines"])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("has_checkpoint", [True, False], ids=["checkpoint", "no checkpoint"])
def test_a_display_follows_a_run_that_was_resumed_in_mid_step(
    directory: RunDirectory, entries: list[Entry], open_display: Open, step: int, has_checkpoint: bool
) -> None:
    cut = crash_places(entries)[step - 1]
    states = record(directory, entries[:cut])
    checkpoint: Path | None = None
    if has_checkpoint:
        checkpoint = directory.checkpoints / "step_1"
        checkpoint.mkdir()
        (checkpoint / "run_state.json").write_text(json.dumps(states[-1]))
    said: list[str] = []
    with PayloadStore.open(directory.payload) as store:
        past = recall(journal=directory.journal, checkpoint=checkpoint, store=store, schedule=SCHEDULE)
        display = open_display(said)
        recorder = Recorder(directory, past, display=display, sinks=Sinks({}, fail), prediction=None, complain=fail)
        text = picture(display)
        assert not text or f"{step}/{SCHEDULE.max_steps}" in text
        assert "instance" not in text, "its processes are gone"
        for entry in entries[cut:]:
            append(store, entry.event)
            recorder.record(entry)
        recorder.close()
    text = picture(display)
    assert not text or f"{SCHEDULE.max_steps}/{SCHEDULE.max_steps}" in text
    whole = Metrics()
    rows = [row for entry in entries for row in whole.feed(entry)]
    assert [json.loads(line) for line in directory.metrics.read_text().splitlines()] == rows


def picture(display: Display) -> str:
    if not isinstance(display, LiveDisplay):
        return ""
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(display.render())
    return console.export_text()
