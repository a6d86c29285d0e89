from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.weights.address import COLLECTIVE, SHARED_MEMORY, ChannelAddress
from tailrace.weights.slots.channel_files import MEMORY_DIRECTORY, NoRoom, disk_line, prepare_path, unfinished

CAPACITY = {"memory": 1000, "disk": 1500}


def free_bytes(directory: Path) -> int:
    """Free space of a small file system: what it can hold less the files that are there."""
    return CAPACITY[directory.name] - sum(path.stat().st_size for path in directory.iterdir())


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
    return make(prepare_path(name, num_bytes, among=[memory, disk], free_bytes=free_bytes).path, num_bytes)


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
    path, _ = prepare_path("run", 600, among=[memory, disk], free_bytes=free_bytes)
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
    assert prepare_path("run", 400, among=[memory, disk], free_bytes=free_bytes).path == first
    assert first.exists()


def test_files_of_other_runs_are_left_alone(memory: Path, disk: Path) -> None:
    first = start(memory, disk, 600, name="one")
    second = start(memory, disk, 600, name="two")
    assert files(memory, disk) == [first, second]


def test_a_file_that_goes_to_disk_is_said_with_the_reason_and_what_to_do(memory: Path, disk: Path) -> None:
    inside = prepare_path("run", 600, among=[memory, disk], free_bytes=free_bytes)
    assert (inside.path.parent, inside.note) == (memory, None)
    path, note = prepare_path("run", 1200, among=[memory, disk], free_bytes=free_bytes)
    assert path.parent == disk
    assert note is not None
    assert note.startswith(f"weights go to {disk}, on disk, because they take 0.0 MiB and {memory} has 0.0 MiB free")
    assert "--shm-size" in note


def test_a_file_that_fits_nowhere_is_refused_with_what_each_directory_has(memory: Path, disk: Path) -> None:
    with pytest.raises(NoRoom, match=f"no room for 2.0 GiB of weights: {memory} has 0.0 MiB free, {disk} has"):
        prepare_path("run", 2 * 2**30, among=[memory, disk], free_bytes=free_bytes)


@pytest.mark.skipif(not MEMORY_DIRECTORY.is_dir(), reason="needs a memory file system")
def test_the_controller_can_tell_from_the_address_that_weights_are_on_disk() -> None:
    on_disk = ChannelAddress(kind=SHARED_MEMORY, location="disk/tailrace-run.weights")
    line = disk_line(on_disk)
    assert line is not None
    assert "weights are published on disk, in disk/tailrace-run.weights" in line
    in_memory = ChannelAddress(kind=SHARED_MEMORY, location=str(MEMORY_DIRECTORY / "tailrace-run.weights"))
    elsewhere = ChannelAddress(kind=COLLECTIVE, location="127.0.0.1:1/key")
    assert (disk_line(in_memory), disk_line(elsewhere)) == (None, None)
