"""What a run records is closed into segments at checkpoints, and can be resumed from any of them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.world import World
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.display.display import PlainDisplay
from tailrace.observe.journal.journal_file import read
from tailrace.observe.journal.journal_segments import closed_segments
from tailrace.observe.sinks import Sinks
from tailrace.policies.strategies import policies_of
from tailrace.runtime.record.recorder import Recorder
from tailrace.runtime.record.resume import RecalledRun, recall
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=6, save_interval=1)


@pytest.fixture
def entries() -> list[Entry]:
    world = World(SCHEDULE, random.Random(3))
    world.run()
    return world.entries


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    directory = RunDirectory(tmp_path / "run")
    for folder in (directory.payload, directory.checkpoints, directory.logs):
        folder.mkdir(parents=True)
    return directory


def fail(part: str, error: Exception) -> None:
    raise error


def open_recorder(directory: RunDirectory, past: RecalledRun) -> Recorder:
    display = PlainDisplay(SCHEDULE.max_steps, lambda line: None)
    return Recorder(
        directory, past, display=display, sinks=Sinks({}, fail), prediction=None, complain=fail, segment_bytes=1
    )


def recalled(directory: RunDirectory, store: PayloadStore, checkpoint: Path | None = None) -> RecalledRun:
    return recall(journal=directory.journal, checkpoint=checkpoint, store=store, schedule=SCHEDULE)


def append(store: PayloadStore, event: ev.Event) -> None:
    for part in event.parts if isinstance(event, ev.RolloutReported) else ():
        held, count = store.length(part.response), part.length - store.length(part.response)
        segment = Segment(
            response_id=part.response,
            start=held,
            version=event.version,
            tokens=np.zeros(count, np.int32),
            logprobs=np.zeros(count, np.float32),
            mask=np.ones(count, np.uint8),
        )
        store.append([segment] if count else [])


def record(directory: RunDirectory, entries: list[Entry]) -> list[dict[str, Any]]:
    """All entries, as a controller records them; returned is what each checkpoint knows."""
    coordinator, states = Coordinator(SCHEDULE, policies=policies_of(SCHEDULE)), []
    with PayloadStore.open(directory.payload) as store:
        recorder = open_recorder(directory, recalled(directory, store))
        for entry in entries:
            append(store, entry.event)
            coordinator.handle(entry.event, now=entry.now)
            recorder.record(entry)
            if isinstance(entry.event, ev.CheckpointSaved):
                version = {"version": entry.event.version, "coordinator": coordinator.snapshot()}
                states.append(version | recorder.snapshot())
                recorder.pack(states[-1]["journal_size"])
        recorder.close()
    return states


def test_a_segment_is_closed_at_every_checkpoint_and_compressed_by_the_next(
    directory: RunDirectory, entries: list[Entry]
) -> None:
    states = record(directory, entries)
    segments = closed_segments(directory.journal)
    assert [segment.end for segment in segments] == [state["journal_size"] for state in states]
    assert all(segment.is_packed for segment in segments)
    assert [entry for _, entry in read(directory.journal)] == entries


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_run_goes_on_from_any_checkpoint_whatever_was_compressed_since(
    directory: RunDirectory, entries: list[Entry], number: int
) -> None:
    state = record(directory, entries)[number]
    checkpoint = directory.checkpoints / "step_1"
    checkpoint.mkdir()
    (checkpoint / "run_state.json").write_text(json.dumps(state))
    with PayloadStore.open(directory.payload) as store:
        past = recalled(directory, store, checkpoint)
        assert [*past.tail] == entries[len(entries) - len(past.tail) :]
        recorder = open_recorder(directory, past)
        recorder.record(Entry(now=past.now, event=ev.TimerFired(), commands=()))
        recorder.close()
    assert [entry.event for _, entry in read(directory.journal)] == [*(e.event for e in entries), ev.TimerFired()]
