"""The journal on disk survives being cut anywhere."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from core.world import World
from tailrace.core.schedule import Schedule
from tailrace.observe.journal.journal_file import JournalFile, read


def write_run(path: Path, num_entries: int = 40) -> World:
    world = World(Schedule(train_source="train", batch_size=2, group_size=2, max_steps=3), random.Random(0))
    world.run()
    journal = JournalFile.open(path)
    for entry in world.entries[:num_entries]:
        journal.append(entry)
    journal.close()
    return world


def test_what_is_appended_is_read_back_with_its_position(tmp_path: Path) -> None:
    world = write_run(tmp_path / "journal.jsonl")
    found = list(read(tmp_path / "journal.jsonl"))
    assert [entry for _, entry in found] == world.entries[:40]
    middle = found[20][0]
    assert [entry for _, entry in read(tmp_path / "journal.jsonl", middle)] == world.entries[21:40]


def test_entries_appended_together_are_the_same_lines(tmp_path: Path) -> None:
    world = write_run(tmp_path / "one_by_one.jsonl")
    journal = JournalFile.open(tmp_path / "together.jsonl")
    journal.append(*world.entries[:3])
    journal.append()
    journal.append(*world.entries[3:40])
    journal.close()
    assert journal.size == (tmp_path / "together.jsonl").stat().st_size
    assert (tmp_path / "together.jsonl").read_bytes() == (tmp_path / "one_by_one.jsonl").read_bytes()


def test_a_journal_cut_at_any_byte_loses_only_the_torn_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    world = write_run(path, num_entries=3)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        JournalFile.open(path).close()
        kept = [entry for _, entry in read(path)]
        assert kept == world.entries[: whole[:size].count(b"\n")]
        assert path.stat().st_size == whole[:size].rfind(b"\n") + 1


def test_appending_goes_on_after_a_torn_entry(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    world = write_run(path, num_entries=3)
    path.write_bytes(path.read_bytes()[:-5])
    journal = JournalFile.open(path)
    journal.append(world.entries[2])
    assert journal.size == path.stat().st_size
    journal.close()
    assert [entry for _, entry in read(path)] == world.entries[:3]


def test_damage_in_the_middle_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_run(path, num_entries=3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(ValueError, match=f"ends at byte {len(lines[0]) + 8} is damaged"):
        list(read(path))
