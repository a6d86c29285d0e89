"""An observer that breaks leaves the journal whole; a checkpoint keeps no metrics that broke."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from observe.test_guarded import Breaking, Told
from runtime.record.test_recorder import SCHEDULE, append, directory, entries, fail, recalled, record
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.journal import Entry
from tailrace.observe.display.display import Display, PlainDisplay
from tailrace.observe.display.safe_display import SafeDisplay
from tailrace.observe.guarded import Complain
from tailrace.observe.journal.journal_file import read
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.sinks import Sinks
from tailrace.runtime.record.recorder import Recorder
from tailrace.runtime.record.resume import RecalledRun
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.store.payload_store import PayloadStore

__all__ = ["directory", "entries"]

IMPOSSIBLE = ev.StepTrained(version=Version(99), seconds=1.0, metrics=())
"""A step that nobody asked for."""


def lines(said: list[str]) -> PlainDisplay:
    return PlainDisplay(SCHEDULE.max_steps, said.append)


def open_recorder(
    directory: RunDirectory, past: RecalledRun, complain: Complain, display: Display | None = None
) -> Recorder:
    return Recorder(
        directory,
        past,
        display=display or lines([]),
        sinks=Sinks({}, complain),
        prediction=None,
        complain=complain,
    )


def rows_of(entries: list[Entry]) -> list[Row]:
    metrics = Metrics()
    return [row for entry in entries for row in metrics.feed(entry)]


def written(directory: RunDirectory) -> list[Row]:
    return [json.loads(line) for line in directory.metrics.read_text().splitlines()]


def write_state(directory: RunDirectory, state: dict[str, Any]) -> Path:
    checkpoint = directory.checkpoints / "step_1"
    checkpoint.mkdir()
    (checkpoint / "run_state.json").write_text(json.dumps(state))
    return checkpoint


def test_metrics_that_break_are_switched_off_and_no_checkpoint_keeps_them(
    directory: RunDirectory, entries: list[Entry]
) -> None:
    told = Told()
    with PayloadStore.open(directory.payload) as store:
        recorder = open_recorder(directory, recalled(directory, store), told)
        half = len(entries) // 2
        recorder.record(*entries[:half])
        before, summary = recorder.snapshot(), dict(recorder.summary)
        recorder.record(Entry(now=entries[half].now, event=IMPOSSIBLE, commands=()))
        recorder.record(*entries[half:])
        after = recorder.snapshot()
        recorder.sync()
        recorder.close()
    assert [part for part, _ in told.complaints] == ["metrics"]
    assert before["metrics"] is not None
    assert (after["metrics"], after["metrics_size"], after["summary"]) == (None, 0, {})
    assert recorder.summary == summary
    assert len(list(read(directory.journal))) == len(entries) + 1


@pytest.mark.parametrize("kept", [None, {"run": "nonsense"}], ids=["none", "unreadable"])
@pytest.mark.parametrize("number", [0, -2])
def test_metrics_that_a_checkpoint_does_not_hold_are_computed_from_the_journal(
    directory: RunDirectory, entries: list[Entry], kept: Any, number: int
) -> None:
    cut = len(entries) - 9
    state = record(directory, entries[:cut])[number]
    checkpoint = write_state(directory, state | {"metrics": kept})
    told = Told()
    with PayloadStore.open(directory.payload) as store:
        recorder = open_recorder(directory, recalled(directory, store, checkpoint), told)
        for entry in entries[cut:]:
            append(store, entry.event)
            recorder.record(entry)
        recorder.close()
    assert [part for part, _ in told.complaints] == ["metrics of the checkpoint"] * (kept is not None)
    assert written(directory) == rows_of(entries)
    assert recorder.summary["step"] == SCHEDULE.max_steps


def test_rows_that_are_gone_are_computed_from_the_journal(directory: RunDirectory, entries: list[Entry]) -> None:
    checkpoint = write_state(directory, record(directory, entries)[-1])
    directory.metrics.unlink()
    with PayloadStore.open(directory.payload) as store:
        open_recorder(directory, recalled(directory, store, checkpoint), fail).close()
    assert written(directory) == rows_of(entries)


def test_a_journal_that_cannot_be_read_leaves_the_rows_as_they_were(
    directory: RunDirectory, entries: list[Entry]
) -> None:
    """The metrics would be computed again from the journal, whose old part is damaged."""
    checkpoint = write_state(directory, record(directory, entries)[-1] | {"metrics": None})
    rows = directory.metrics.read_bytes()
    assert rows
    segment = min(directory.path.glob("journal-*"))
    packed = segment.read_bytes()
    segment.write_bytes(packed[:-8] + bytes(4) + packed[-4:])  # its checksum: the first entry can still be read
    told = Told()
    with PayloadStore.open(directory.payload) as store:
        open_recorder(directory, recalled(directory, store, checkpoint), told).close()
    assert [part for part, _ in told.complaints] == ["metrics"]
    assert directory.metrics.read_bytes() == rows
    assert list(directory.path.glob("*.draft")) == []


def test_a_display_that_breaks_leaves_journal_and_metrics_whole(directory: RunDirectory, entries: list[Entry]) -> None:
    told, said, breaking = Told(), list[str](), Breaking()
    breaking.breaks = True
    display = SafeDisplay([lambda: breaking, lambda: lines(said)], told)
    with PayloadStore.open(directory.payload) as store:
        recorder = open_recorder(directory, recalled(directory, store), fail, display)
        recorder.record(*entries)
        recorder.close()
    assert [part for part, _ in told.complaints] == ["display"]
    assert [entry for _, entry in read(directory.journal)] == entries
    assert written(directory) == rows_of(entries)
    assert len([line for line in said if line.startswith("step ")]) == SCHEDULE.max_steps


def test_a_journal_that_cannot_be_written_ends_the_run(directory: RunDirectory, entries: list[Entry]) -> None:
    told = Told()
    with PayloadStore.open(directory.payload) as store:
        recorder = open_recorder(directory, recalled(directory, store), told)
        recorder.close()
        with pytest.raises(ValueError, match="closed file"):
            recorder.record(entries[0])
    assert told.complaints == []
