"""What is special about a channel in device memory: it ends with its writer. Here the memory is made of files."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tailrace.core.ids import Version
from tailrace.weights.channel import WriterLost
from tailrace.weights.sharding.layout import ALIGNMENT, WeightLayout
from tailrace.weights.slots.cuda_ipc import DeviceSlots, open_reader
from tailrace.weights.slots.device_checksum import checksums
from tailrace.weights.slots.shared_memory import create as create_in_memory
from tailrace.weights.slots.two_slots import WeightReader, WeightWriter, layout_of
from weights.channel_kinds import make_kind
from weights.contents import weights
from weights.file_memory import FileMemory
from weights.writer_process import endless_writer, pull_until_lost

FILES = "device memory in files"


def make(path: Path) -> tuple[WeightWriter, FileMemory]:
    memory = FileMemory(path.parent)
    return WeightWriter(DeviceSlots.create(path, layout_of(weights(0)), memory)), memory


@pytest.mark.long
def test_a_killed_writer_ends_in_whole_versions_or_a_failed_pull_and_its_successor_is_found(tmp_path: Path) -> None:
    rng, reader, num_whole = random.Random(0), None, 0
    for number in range(3):
        with endless_writer(FILES, tmp_path / "w", first=100 * number) as process:
            reader = reader or make_kind(FILES).reader(tmp_path / "w")
            pulls = pull_until_lost(reader, process, rng)
        assert pulls.num_corrupt == 0
        num_whole += pulls.num_whole
    assert num_whole > 0


def test_a_writer_that_dies_during_the_copy_makes_the_pull_fail(tmp_path: Path) -> None:
    writer, _ = make(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = make_kind(FILES).meddled_reader(tmp_path / "w", writer._file.locks.end_as_writer)
    with pytest.raises(WriterLost):
        reader.fetch_whole(Version(0))


def test_a_reader_closes_the_slots_of_a_writer_that_is_dead_or_replaced(tmp_path: Path) -> None:
    first, _ = make(tmp_path / "w")
    first.publish(Version(0), weights(0))
    memory = FileMemory(tmp_path)
    reader = WeightReader(DeviceSlots(tmp_path / "w", memory))
    assert memory.num_open == 0, "before anything is fetched"
    reader.fetch_whole(Version(0))
    assert memory.num_open == 2
    second, _ = make(tmp_path / "w")
    second.publish(Version(1), weights(1))
    assert reader.latest_version() == 1
    assert memory.num_open == 0
    reader.fetch_whole(Version(0))
    second.close()
    with pytest.raises(WriterLost):
        reader.fetch_whole(Version(0))
    assert memory.num_open == 0


def test_a_writer_that_closes_frees_its_slots(tmp_path: Path) -> None:
    writer, _ = make(tmp_path / "w")
    assert len(list(tmp_path.iterdir())) == 3
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_slots_are_freed_if_the_file_cannot_be_made(tmp_path: Path) -> None:
    memory = FileMemory(tmp_path)
    with pytest.raises(FileNotFoundError):
        DeviceSlots.create(tmp_path / "nowhere" / "w", layout_of(weights(0)), memory)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_on_another_device_is_refused_with_both_names(tmp_path: Path) -> None:
    writer, _ = make(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = WeightReader(DeviceSlots(tmp_path / "w", FileMemory(tmp_path, "another")))
    with pytest.raises(ValueError, match=r"published on device files, but the rollout is on another.*shared-memory"):
        reader.fetch_whole(Version(0))


def test_a_slot_that_cannot_be_opened_is_an_error_if_the_writer_lives_and_its_loss_otherwise(tmp_path: Path) -> None:
    class Refusing(FileMemory):
        def open(self, handle: bytes, num_bytes: int) -> torch.Tensor:
            raise RuntimeError("cuIpcOpenMemHandle: not supported")

    writer, _ = make(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = WeightReader(DeviceSlots(tmp_path / "w", Refusing(tmp_path)))
    with pytest.raises(RuntimeError, match=r"cannot be opened on the device .cuIpcOpenMemHandle: not supported"):
        reader.fetch_whole(Version(0))
    writer.close()
    with pytest.raises(WriterLost):
        reader.fetch_whole(Version(0))


def test_each_kind_refuses_the_file_of_the_other(tmp_path: Path) -> None:
    writer, _ = make(tmp_path / "device")
    with pytest.raises(ValueError, match="are not in the file"):
        make_kind("shared memory").reader(tmp_path / "device")
    other = create_in_memory(tmp_path / "memory", layout_of(weights(0)))
    with pytest.raises(ValueError, match="are in shared memory, not on a device"):
        make_kind(FILES).reader(tmp_path / "memory")
    writer.close()
    other.close()


def test_a_rollout_on_the_cpu_cannot_pull_from_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"published on a GPU .CUDA IPC., but the rollout runs on cpu"):
        open_reader(tmp_path / "w", torch.device("cpu"))


LAYOUT = WeightLayout.build(
    [
        ("none", (0, 4), "float32"),
        ("matrix", (37, 16), "float32"),
        ("scalar", (), "bfloat16"),
        ("empty", (0,), "int64"),
        ("long", (41, 70), "float32"),
        ("last", (0,), "bool"),
    ]
)


def test_every_changed_bit_changes_the_checksum_of_its_tensor_and_of_no_other() -> None:
    block = torch.randint(0, 256, (LAYOUT.num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = checksums(block, LAYOUT)
    assert len(before) == len(LAYOUT.entries)
    for number, entry in enumerate(LAYOUT.entries):
        for position in range(entry.offset, entry.offset + entry.num_bytes, 61):
            changed = block.clone()
            changed[position] ^= 1 << (position % 8)
            assert (checksums(changed, LAYOUT) != before).nonzero().flatten().tolist() == [number]


def test_lines_that_change_places_change_the_checksum() -> None:
    block = torch.arange(LAYOUT.num_bytes // 8).view(torch.uint8)
    start = LAYOUT.entries[4].offset
    changed = block.clone()
    changed[start : start + ALIGNMENT] = block[start + ALIGNMENT : start + 2 * ALIGNMENT]
    changed[start + ALIGNMENT : start + 2 * ALIGNMENT] = block[start : start + ALIGNMENT]
    assert checksums(changed, LAYOUT)[4] != checksums(block, LAYOUT)[4]


@pytest.mark.parametrize("part_lines", [1, 3, 64])
def test_checksums_do_not_depend_on_how_much_is_worked_on_at_a_time(part_lines: int) -> None:
    block = torch.randint(0, 256, (LAYOUT.num_bytes,), dtype=torch.uint8)
    assert torch.equal(checksums(block, LAYOUT, part_lines=part_lines), checksums(block, LAYOUT))


def test_a_model_without_weights_has_no_checksums() -> None:
    assert checksums(torch.zeros(64, dtype=torch.uint8), WeightLayout.build([])).tolist() == []


def test_the_controller_removes_a_channel_without_loading_torch(tmp_path: Path) -> None:
    writer, _ = make(tmp_path / "w")
    script = (
        "import sys; from tailrace.weights.address import ChannelAddress;"
        " from tailrace.weights.slots.channel_files import remove_channel;"
        f" remove_channel(ChannelAddress(kind={writer.address.kind!r}, location={writer.address.location!r}));"
        " sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert not (tmp_path / "w").exists()
