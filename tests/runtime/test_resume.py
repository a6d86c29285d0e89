"""Where a run goes on: checkpoint, tail, and a journal that ends where its payload does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from core.world import World
from tailrace.core import events as ev
from tailrace.core.ids import TrajectoryId, Version
from tailrace.core.schedule import Schedule
from tailrace.observe.journal_file import JournalFile
from tailrace.observe.metrics import Metrics
from tailrace.policies.routing.least_loaded import LeastLoaded
from tailrace.runtime.resume import Past, recall
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=4)


def segment(trajectory: TrajectoryId, start: int, count: int) -> Segment:
    return Segment(
        trajectory=trajectory,
        start=start,
        version=Version(0),
        tokens=np.zeros(count, np.int32),
        logprobs=np.zeros(count, np.float32),
        mask=np.ones(count, np.uint8),
    )


def write(tmp_path: Path, world: World) -> PayloadStore:
    """The journal and payload of a run, as a controller writes them."""
    journal, store = JournalFile.open(tmp_path / "journal.jsonl"), PayloadStore.open(tmp_path / "payload")
    for entry in world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            for part in (*entry.event.progressed, *entry.event.finished):
                held = store.length(part.trajectory)
                store.append([segment(part.trajectory, held, part.length - held)] if part.length > held else [])
        journal.append(entry)
    journal.close()
    return store


def recalled(tmp_path: Path, store: PayloadStore, checkpoint: Path | None = None) -> Past:
    return recall(
        journal=tmp_path / "journal.jsonl", checkpoint=checkpoint, store=store, schedule=SCHEDULE, routing=LeastLoaded()
    )


@pytest.fixture
def world() -> World:
    world = World(SCHEDULE, random.Random(7))
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    while world.coordinator.version < 3:
        world.advance()
    return world


def test_without_a_checkpoint_every_step_is_taken_again(tmp_path: Path, world: World) -> None:
    with write(tmp_path, world) as store:
        past = recalled(tmp_path, store)
    assert [step.version for step in past.steps_to_redo()] == [0, 1, 2]
    assert past.coordinator.snapshot() == world.coordinator.snapshot()
    assert past.now == world.entries[-1].now


def test_from_a_checkpoint_only_what_came_after_it_is_read(tmp_path: Path, world: World) -> None:
    half = World(SCHEDULE, random.Random(7))
    metrics = Metrics()
    index = next(i for i, e in enumerate(world.entries) if getattr(e.event, "version", None) == 2)
    size = 0
    with write(tmp_path, world) as store:
        for entry in world.entries[: index + 1]:
            half.coordinator.handle(entry.event, now=entry.now)
            metrics.feed(entry)
        size = sum(len(line) for line in (tmp_path / "journal.jsonl").read_bytes().splitlines(True)[: index + 1])
        checkpoint = tmp_path / "step_2"
        checkpoint.mkdir()
        state = {
            "coordinator": half.coordinator.snapshot(),
            "metrics": metrics.snapshot(),
            "journal_size": size,
            "metrics_size": 0,
            "now": 1.0,
            "version": 2,
            "summary": {},
        }
        (checkpoint / "run_state.json").write_text(json.dumps(state))
        past = recalled(tmp_path, store, checkpoint)
    assert past.tail == tuple(world.entries[index + 1 :])
    assert [step.version for step in past.steps_to_redo()] == [2]
    assert past.coordinator.snapshot() == world.coordinator.snapshot()


def test_an_event_without_its_payload_ends_the_journal_there(tmp_path: Path, world: World) -> None:
    with write(tmp_path, world):
        pass
    index, report = next(
        (i, e.event)
        for i, e in enumerate(world.entries)
        if isinstance(e.event, ev.RolloutReported) and any(part.length for part in e.event.finished)
    )
    lost = next(part for part in report.finished if part.length)
    with PayloadStore.open(tmp_path / "other") as poorer:
        for entry in world.entries[:index]:
            if isinstance(entry.event, ev.RolloutReported):
                for part in (*entry.event.progressed, *entry.event.finished):
                    held = poorer.length(part.trajectory)
                    poorer.append([segment(part.trajectory, held, part.length - held)] if part.length > held else [])
        assert poorer.length(lost.trajectory) < lost.length
        past = recalled(tmp_path, poorer)
    assert len(past.tail) == index
    assert past.journal_size < (tmp_path / "journal.jsonl").stat().st_size
