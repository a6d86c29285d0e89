"""Where a run goes on: checkpoint, tail, and a journal that ends where its payload does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.observe.journal.journal_file import JournalFile
from tailrace.observe.metrics.rows import Metrics
from tailrace.policies.strategies import policies_of
from tailrace.runtime.record.resume import RecalledRun, recall
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=4)


def segment(response: ResponseId, start: int, count: int) -> Segment:
    return Segment(
        response_id=response,
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
                held = store.length(part.response)
                store.append([segment(part.response, held, part.length - held)] if part.length > held else [])
        journal.append(entry)
    journal.close()
    return store


def recalled(tmp_path: Path, store: PayloadStore, checkpoint: Path | None = None) -> RecalledRun:
    return recall(journal=tmp_path / "journal.jsonl", checkpoint=checkpoint, store=store, schedule=SCHEDULE)


def save(tmp_path: Path, entries: list[Entry], schedule: Schedule, version: Version) -> Path:
    """A checkpoint of the run as it was after these entries."""
    coordinator, metrics = Coordinator(schedule, policies=policies_of(schedule)), Metrics()
    for entry in entries:
        coordinator.handle(entry.event, now=entry.now)
        metrics.feed(entry)
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines(True)
    state = {
        "coordinator": coordinator.snapshot(),
        "metrics": metrics.snapshot(),
        "journal_size": sum(len(line) for line in lines[: len(entries)]),
        "metrics_size": 0,
        "now": 1.0,
        "version": version,
        "summary": {},
    }
    checkpoint = tmp_path / f"step_{version}"
    checkpoint.mkdir()
    (checkpoint / "run_state.json").write_text(json.dumps(state))
    return checkpoint


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
    assert [batch.version for step in past.taken_steps().since(Version(0)) for batch in step.batches] == [0, 1, 2]
    assert past.coordinator.snapshot() == world.coordinator.snapshot()
    assert past.now == world.entries[-1].now


def test_a_journal_whose_first_line_was_cut_off_is_that_of_a_new_run(tmp_path: Path, world: World) -> None:
    with write(tmp_path, world) as store:
        line = (tmp_path / "journal.jsonl").read_bytes().splitlines(True)[0]
        (tmp_path / "journal.jsonl").write_bytes(line[: len(line) // 2])
        past = recalled(tmp_path, store)
    assert past.is_new
    assert past.coordinator.schedule == SCHEDULE


def test_from_a_checkpoint_only_what_came_after_it_is_read(tmp_path: Path, world: World) -> None:
    index = next(i for i, e in enumerate(world.entries) if getattr(e.event, "version", None) == 2)
    with write(tmp_path, world) as store:
        past = recalled(tmp_path, store, save(tmp_path, world.entries[: index + 1], SCHEDULE, Version(2)))
    assert past.tail == tuple(world.entries[index + 1 :])
    assert [batch.version for step in past.taken_steps().since(Version(2)) for batch in step.batches] == [2]
    assert past.coordinator.snapshot() == world.coordinator.snapshot()


def test_a_step_asked_for_together_with_the_checkpoint_is_taken_again_too(tmp_path: Path) -> None:
    """Its order is in the entry that the checkpoint ends with, and only its end is in the tail."""
    schedule = Schedule(
        train_source="train",
        batch_size=1,
        group_size=1,
        max_steps=6,
        leftovers=Leftovers.KEEP,
        max_staleness=2,
        save_interval=1,
    )
    world = World(schedule, random.Random(0))
    world.run()
    orders = [{type(command) for command in entry.commands} for entry in world.entries]
    index = next(i for i, kinds in enumerate(orders) if {do.SaveCheckpoint, do.Accumulate} <= kinds)
    [begun] = [c for c in world.entries[index].commands if isinstance(c, do.Accumulate)]
    with write(tmp_path, world) as store:
        checkpoint = save(tmp_path, world.entries[: index + 1], schedule, begun.version)
        past = recall(
            journal=tmp_path / "journal.jsonl",
            checkpoint=checkpoint,
            store=store,
            schedule=schedule,
        )
    redone = [batch for step in past.taken_steps().since(begun.version) for batch in step.batches]
    assert redone[0] == begun
    assert [step.version for step in redone] == list(range(begun.version, 6))


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
                    held = poorer.length(part.response)
                    poorer.append([segment(part.response, held, part.length - held)] if part.length > held else [])
        assert poorer.length(lost.response) < lost.length
        past = recalled(tmp_path, poorer)
    assert len(past.tail) == index
    assert past.journal_size < (tmp_path / "journal.jsonl").stat().st_size
