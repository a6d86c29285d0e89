"""A journal that was cut into segments reads as if it had not been, whatever was compressed and whenever one died."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_checkpoint, write_journal
from tailrace.cli.main import main
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.journal.journal_file import JournalFile, read
from tailrace.observe.journal.journal_segments import closed_segments, end_of, pack, start_of
from tailrace.observe.journal.recollection import recollect
from tailrace.observe.journal.run_files import RunFiles

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=3)


@pytest.fixture
def entries() -> list[Entry]:
    world = World(SCHEDULE, random.Random(0))
    world.run()
    return world.entries


def write(path: Path, entries: list[Entry], *, every: int = 20) -> list[int]:
    """Close a segment after so many entries each; returned are the positions after each entry."""
    journal, positions = JournalFile.open(path), []
    for number, entry in enumerate(entries, 1):
        journal.append(entry)
        positions.append(journal.size)
        if number % every == 0:
            journal.close_segment()
    journal.close()
    return positions


@pytest.mark.parametrize("num_packed", [0, 1, 2])
def test_segments_are_read_as_one_journal_from_any_position(
    tmp_path: Path, entries: list[Entry], num_packed: int
) -> None:
    path = tmp_path / "journal.jsonl"
    positions = write(path, entries)
    pack(path, until=positions[20 * num_packed - 1] if num_packed else 0)
    assert [segment.is_packed for segment in closed_segments(path)][:3] == [n < num_packed for n in range(3)]
    assert list(read(path)) == list(zip(positions, entries, strict=True))
    for number in (0, 18, 19, 20, 45, len(entries) - 1):
        assert [entry for _, entry in read(path, positions[number])] == entries[number + 1 :]
    assert end_of(path) == positions[-1]


def test_only_what_a_checkpoint_covers_is_compressed(tmp_path: Path, entries: list[Entry]) -> None:
    path = tmp_path / "journal.jsonl"
    positions = write(path, entries)
    pack(path, until=positions[39] - 1)
    assert [segment.is_packed for segment in closed_segments(path)][:2] == [True, False]


def test_a_compressed_segment_is_smaller_and_named_by_its_start(tmp_path: Path, entries: list[Entry]) -> None:
    path = tmp_path / "journal.jsonl"
    positions = write(path, entries)
    sizes = [segment.path.stat().st_size for segment in closed_segments(path)]
    pack(path, until=positions[-1])
    second = closed_segments(path)[1]
    assert second.path.name == f"journal-{positions[19]:015d}.jsonl.gz"
    assert second.path.stat().st_size < sizes[1] / 2
    assert not second.path.with_suffix("").exists()


@pytest.mark.parametrize("packed_until", [0, 1])
def test_a_journal_can_be_cut_back_into_a_closed_segment_and_goes_on_there(
    tmp_path: Path, entries: list[Entry], packed_until: int
) -> None:
    path = tmp_path / "journal.jsonl"
    positions = write(path, entries)
    pack(path, until=packed_until * positions[-1])
    journal = JournalFile.open(path)
    journal.truncate(positions[29])
    journal.append(entries[30])
    journal.close()
    assert [entry for _, entry in read(path)] == entries[:31]
    assert len(closed_segments(path)) == 1


def test_a_death_between_the_steps_of_compressing_loses_nothing(tmp_path: Path, entries: list[Entry]) -> None:
    path = tmp_path / "journal.jsonl"
    positions = write(path, entries)
    first = closed_segments(path)[0].path
    content = first.read_bytes()
    pack(path, until=positions[-1])
    first.write_bytes(content)  # compressed, and not removed yet
    first.with_name(first.name + ".draft").write_bytes(b"half")
    assert [entry for _, entry in read(path)] == entries
    pack(path, until=positions[-1])
    assert not first.exists()


def test_a_death_right_after_a_segment_was_closed_loses_nothing(tmp_path: Path, entries: list[Entry]) -> None:
    run = write_journal(tmp_path / "run", [])
    path = run / "journal.jsonl"
    write(path, entries[:40])
    path.unlink()  # the next file was not begun
    files = RunFiles.find(run)
    assert not files.has_torn_end()
    assert files.quiet_s(0.0) == 0.0
    assert [entry for _, entry in read(path)] == entries[:40]
    journal = JournalFile.open(path)
    journal.append(entries[40])
    journal.close()
    assert [entry for _, entry in read(path)] == entries[:41]


def test_a_torn_end_is_cut_off_after_segments_too(tmp_path: Path, entries: list[Entry]) -> None:
    path = tmp_path / "journal.jsonl"
    positions = write(path, entries[:45])
    path.write_bytes(path.read_bytes()[:-3])
    journal = JournalFile.open(path)
    assert journal.size == positions[43]
    assert start_of(path) == positions[39]
    journal.close()
    assert [entry for _, entry in read(path)] == entries[:44]


def test_a_run_in_segments_is_replayed_reported_and_examined(
    tmp_path: Path, entries: list[Entry], capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_journal(tmp_path / "run", [])
    positions = write(run / "journal.jsonl", entries)
    pack(run / "journal.jsonl", until=positions[30])
    assert main(["replay", str(run)]) == 0
    assert capsys.readouterr().out == f"{len(entries)} entries, every command as recorded\n"
    assert main(["report", str(run)]) == 0
    assert main(["doctor", str(run)]) in (0, 1)
    assert "Unfollowable" not in capsys.readouterr().out


def test_the_state_is_rebuilt_from_a_checkpoint_and_the_segments_after_it(tmp_path: Path, entries: list[Entry]) -> None:
    whole = write_journal(tmp_path / "whole", entries)
    write_checkpoint(whole, SCHEDULE, entries[:25], 1)
    run = write_journal(tmp_path / "run", [])
    positions = write(run / "journal.jsonl", entries)
    (whole / "checkpoints").rename(run / "checkpoints")
    pack(run / "journal.jsonl", until=positions[25])
    found, expected = recollect(RunFiles.find(run)), recollect(RunFiles.find(whole))
    assert (found.coordinator.snapshot(), found.now) == (expected.coordinator.snapshot(), expected.now)
