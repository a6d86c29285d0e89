from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, VersionNotPublished
from tailrace.weights.mapped_file import RECORD_OFFSETS, MappedFile
from tailrace.weights.shared_memory import WeightReader, WeightWriter, layout_of
from tailrace.weights.slot_locks import ReaderWait
from weights.contents import SHAPES, weights

STRESS = Path(__file__).parents[2] / "benchmarks" / "weights.py"


def create(path: Path) -> WeightWriter:
    return WeightWriter.create(path, layout_of(weights(0)))


def assert_holds(pulled: tuple[Version, dict[str, Tensor]], version: int) -> None:
    assert pulled[0] == version
    assert list(pulled[1]) == list(SHAPES)
    for name, expected in weights(version):
        assert torch.equal(pulled[1][name], expected)


def test_what_is_published_is_pulled_bit_for_bit(tmp_path: Path) -> None:
    sent = [("a", torch.randn(33, 7)), ("b", torch.randn(129).bfloat16()), ("c", torch.tensor(5))]
    writer = WeightWriter.create(tmp_path / "w", layout_of(sent))
    writer.publish(Version(3), reversed(sent))
    version, received = WeightReader.open(tmp_path / "w").fetch_whole(Version(0))
    assert version == 3
    for name, tensor in sent:
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name], tensor)


def test_a_pull_gives_the_newest_version_and_keeps_its_copy(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    reader = WeightReader.open(tmp_path / "w")
    kept = []
    for version in range(4):
        writer.publish(Version(version), weights(version))
        assert reader.latest_version() == version
        kept.append(reader.fetch_whole(Version(version)))
    for version, pulled in enumerate(kept):
        assert_holds(pulled, version)


def test_a_version_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    reader = WeightReader.open(tmp_path / "w")
    assert reader.latest_version() is None
    with pytest.raises(VersionNotPublished, match="version 0 is not published; the channel holds none"):
        reader.fetch_whole(Version(0))
    writer.publish(Version(4), weights(4))
    with pytest.raises(LookupError, match="version 5 is not published; the channel holds 4"):
        reader.fetch_whole(Version(5))


@pytest.mark.parametrize("version", [2, 1])
def test_a_version_that_does_not_grow_is_refused(tmp_path: Path, version: int) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(2), weights(2))
    with pytest.raises(ValueError, match=f"cannot publish version {version} after version 2"):
        writer.publish(Version(version), weights(version))
    assert_holds(WeightReader.open(tmp_path / "w").fetch_whole(Version(0)), 2)


def failing_weights(kind: str) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in weights(2):
        if name != "head":
            yield name, tensor
        elif kind == "shape":
            yield name, tensor[1:]
        elif kind == "dtype":
            yield name, tensor.bfloat16()
        elif kind == "name":
            yield "tail", tensor
        elif kind == "crash":
            raise RuntimeError("crash")


@pytest.mark.parametrize("kind", ["shape", "dtype", "name", "missing", "crash"])
def test_a_publish_that_fails_leaves_the_old_version_and_a_working_channel(tmp_path: Path, kind: str) -> None:
    writer = create(tmp_path / "w")
    reader = WeightReader.open(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    writer.publish(Version(1), weights(1))
    with pytest.raises(RuntimeError if kind == "crash" else ValueError, match=r"head|tail|crash"):
        writer.publish(Version(2), failing_weights(kind))
    assert_holds(reader.fetch_whole(Version(0)), 1)
    writer.publish(Version(2), weights(2))
    assert_holds(reader.fetch_whole(Version(2)), 2)


class Meddled(MappedFile):
    """A reader's file: something happens while the first tensor is copied."""

    def __init__(self, path: Path, meddle: Callable[[], None]) -> None:
        super().__init__(path, writable=False)
        self._meddle: Callable[[], None] | None = meddle

    def tensor_bytes(self, generation: int, index: int) -> np.ndarray:
        meddle, self._meddle = self._meddle, None
        if meddle is not None:
            meddle()
        return super().tensor_bytes(generation, index)


def test_a_publish_waits_for_those_who_read_what_it_overwrites_and_a_pull_for_nobody(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(0))

    def publish_twice() -> None:
        writer.publish(Version(1), weights(1))
        writer.publish(Version(2), weights(2))

    def meddle() -> None:
        thread.start()
        while reader.latest_version() != 1:
            time.sleep(0.001)
        thread.join(0.1)
        assert thread.is_alive(), "version 2 has overwritten version 0 while it was read"
        assert_holds(WeightReader.open(tmp_path / "w").fetch_whole(Version(0)), 1)

    thread = threading.Thread(target=publish_twice)
    reader = WeightReader(Meddled(tmp_path / "w", meddle))
    assert_holds(reader.fetch_whole(Version(0)), 0)
    thread.join()
    assert_holds(reader.fetch_whole(Version(0)), 2)


def test_a_reader_that_does_not_move_on_is_overtaken_and_its_copy_not_believed(tmp_path: Path) -> None:
    create(tmp_path / "w")
    file = MappedFile(tmp_path / "w", writable=True)
    writer = WeightWriter(file, ReaderWait(file.locks, limit_s=0.0))
    writer.publish(Version(0), weights(0))

    def meddle() -> None:
        writer.publish(Version(1), weights(1))
        writer.publish(Version(2), weights(2))

    assert_holds(WeightReader(Meddled(tmp_path / "w", meddle)).fetch_whole(Version(0)), 2)


def test_a_pull_in_the_middle_of_a_publish_gives_the_version_before(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    reader = WeightReader.open(tmp_path / "w")

    def pulling(version: int) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights(version):
            assert_holds(reader.fetch_whole(Version(0)), version - 1)
            yield name, tensor

    writer.publish(Version(0), weights(0))
    for version in range(1, 4):
        writer.publish(Version(version), pulling(version))


def test_real_processes_that_push_pull_and_are_killed_never_see_a_torn_version(tmp_path: Path) -> None:
    """A short slice of `make bench-weights`."""
    out = tmp_path / "weights.json"
    options = ["--seconds", "1", "--kills", "6", "--json", str(out)]
    subprocess.run([sys.executable, str(STRESS), *options], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert found["pusher killed"]["half_way"] > 0, "no push was killed in its middle, so the test shows nothing"
    assert found["pusher killed"]["old_version_not_readable"] == 0
    for stage in ("pushes, pulled", "pusher killed", "puller killed"):
        assert found[stage]["pulls"] > 0
        assert (found[stage]["torn"], found[stage]["refused"], found[stage]["went_back"]) == (0, 0, 0)
    assert found["pushes, pulled"]["pushes"] > 0
    assert found["puller killed"]["pushes"] > 0, "a dead reader held up the writer"


@pytest.mark.parametrize("where", ["tensor", "table"])
def test_changed_bytes_are_noticed(tmp_path: Path, where: str) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(7))
    file = MappedFile(tmp_path / "w", writable=True)
    if where == "tensor":
        file.tensor_bytes(1, 4)[-100] ^= 1
    else:
        file.table(1)[0] ^= 1
    with pytest.raises(CorruptWeights, match="differ from their checksums"):
        WeightReader.open(tmp_path / "w").fetch_whole(Version(0))


def test_a_torn_announcement_falls_back_to_the_version_before(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    writer.publish(Version(1), weights(1))
    with (tmp_path / "w").open("r+b") as file:
        file.seek(RECORD_OFFSETS[0] + 10)
        file.write(b"\xff")
    assert_holds(WeightReader.open(tmp_path / "w").fetch_whole(Version(0)), 0)


def test_a_channel_made_anew_is_noticed_by_its_readers(tmp_path: Path) -> None:
    create(tmp_path / "w").publish(Version(5), weights(5))
    reader = WeightReader.open(tmp_path / "w")
    assert_holds(reader.fetch_whole(Version(0)), 5)
    create(tmp_path / "w").publish(Version(2), weights(2))
    assert_holds(reader.fetch_whole(Version(0)), 2)


def test_closing_the_writer_removes_the_file_but_not_what_readers_hold(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = WeightReader.open(tmp_path / "w")
    writer.close()
    assert not (tmp_path / "w").exists()
    assert_holds(reader.fetch_whole(Version(0)), 0)
    reader.close()


def test_a_file_that_is_no_channel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="not a weight channel"):
        WeightReader.open(tmp_path / "w")
