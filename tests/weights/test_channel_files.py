from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.weights.channel_files import prepare_path, unfinished

CAPACITY = 1000


def free_bytes(directory: Path) -> int:
    """Free space of a small file system: ``CAPACITY`` less the files that are there."""
    return CAPACITY - sum(path.stat().st_size for path in directory.iterdir())


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    return tmp_path / "memory"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def make(path: Path, num_bytes: int) -> Path:
    path.write_bytes(bytes(num_bytes))
    return path


def start(memory: Path, disk: Path, num_bytes: int, name: str = "run") -> Path:
    """A run makes its channel file; a run that is killed leaves the file where it is."""
    return make(prepare_path(name, num_bytes, among=[memory, disk], free_bytes=free_bytes), num_bytes)


def files(*directories: Path) -> list[Path]:
    return [path for directory in directories for path in directory.iterdir()]


@pytest.mark.parametrize("num_bytes", [400, 600])
def test_a_restart_after_a_kill_stays_in_memory_however_large_the_file_left_there(
    memory: Path, disk: Path, num_bytes: int
) -> None:
    first = start(memory, disk, num_bytes)
    second = start(memory, disk, num_bytes)
    assert second == first
    assert files(memory, disk) == [first]


def test_a_file_left_half_made_does_not_count_either(memory: Path, disk: Path) -> None:
    path = prepare_path("run", 600, among=[memory, disk], free_bytes=free_bytes)
    make(unfinished(path), 600)
    assert start(memory, disk, 600) == path
    assert files(memory, disk) == [path]


def test_a_file_left_on_disk_is_removed_once_there_is_room_in_memory(memory: Path, disk: Path) -> None:
    other = make(memory / "somebody else's", 600)
    assert start(memory, disk, 600).parent == disk
    other.unlink()
    path = start(memory, disk, 600)
    assert path.parent == memory
    assert files(memory, disk) == [path]


def test_a_file_that_outgrew_memory_goes_to_disk_and_leaves_nothing_behind(memory: Path, disk: Path) -> None:
    assert start(memory, disk, 600).parent == memory
    path = start(memory, disk, 1200)
    assert path.parent == disk
    assert files(memory, disk) == [path]


def test_an_old_file_stays_readable_until_its_successor_is_ready_where_both_fit(memory: Path, disk: Path) -> None:
    first = start(memory, disk, 400)
    assert prepare_path("run", 400, among=[memory, disk], free_bytes=free_bytes) == first
    assert first.exists()


def test_files_of_other_runs_are_left_alone(memory: Path, disk: Path) -> None:
    first = start(memory, disk, 600, name="one")
    second = start(memory, disk, 600, name="two")
    assert files(memory, disk) == [first, second]
