from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, VersionNotPublished
from tailrace.weights.mapped_file import RECORD_OFFSETS, MappedFile
from tailrace.weights.shared_memory import WeightReader, WeightWriter, channel_path, layout_of
from weights.publisher import SHAPES, weights

PUBLISHER = Path(__file__).with_name("publisher.py")


def create(path: Path) -> WeightWriter:
    return WeightWriter.create(path, layout_of(weights(0)))


def assert_holds(pulled: tuple[Version, dict[str, Tensor]], version: int) -> None:
    assert pulled[0] == version
    assert list(pulled[1]) == list(SHAPES)
    for name, expected in weights(version):
        assert torch.equal(pulled[1][name], expected)


@contextlib.contextmanager
def publisher(how: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(PUBLISHER), how, str(path)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


def test_what_is_published_is_pulled_bit_for_bit(tmp_path: Path) -> None:
    sent = [("a", torch.randn(33, 7)), ("b", torch.randn(129).bfloat16()), ("c", torch.tensor(5))]
    writer = WeightWriter.create(tmp_path / "w", layout_of(sent))
    writer.publish(Version(3), reversed(sent))
    version, received = WeightReader.open(tmp_path / "w").pull(Version(0))
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
        kept.append(reader.pull(Version(version)))
    for version, pulled in enumerate(kept):
        assert_holds(pulled, version)


def test_a_version_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    reader = WeightReader.open(tmp_path / "w")
    assert reader.latest_version() is None
    with pytest.raises(VersionNotPublished, match="version 0 is not published; the channel holds none"):
        reader.pull(Version(0))
    writer.publish(Version(4), weights(4))
    with pytest.raises(LookupError, match="version 5 is not published; the channel holds 4"):
        reader.pull(Version(5))


@pytest.mark.parametrize("version", [2, 1])
def test_a_version_that_does_not_grow_is_refused(tmp_path: Path, version: int) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(2), weights(2))
    with pytest.raises(ValueError, match=f"version {version} comes after version 2"):
        writer.publish(Version(version), weights(version))
    assert_holds(WeightReader.open(tmp_path / "w").pull(Version(0)), 2)


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
    assert_holds(reader.pull(Version(0)), 1)
    writer.publish(Version(2), weights(2))
    assert_holds(reader.pull(Version(2)), 2)


def test_a_writer_killed_in_the_middle_of_a_publish_leaves_the_old_version_readable(tmp_path: Path) -> None:
    path = tmp_path / "w"
    with publisher("half", path) as process:
        wait_for(path.with_suffix(".half"), process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    reader = WeightReader.open(path)
    assert_holds(reader.pull(Version(0)), 1)
    WeightWriter(MappedFile(path, writable=True)).publish(Version(2), weights(2))
    assert_holds(reader.pull(Version(2)), 2)


def test_pulls_during_constant_publishing_are_whole_and_never_go_back(tmp_path: Path) -> None:
    path = tmp_path / "w"
    seen: list[int] = []
    with publisher("for ever", path) as process:
        wait_for(path, process)
        reader = WeightReader.open(path)
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            with contextlib.suppress(VersionNotPublished):
                version, pulled = reader.pull(Version(0))
                seen.append(version)
                assert all(bool((tensor == version).all()) for tensor in pulled.values())
    assert seen == sorted(seen)
    assert len(set(seen)) > 10


@pytest.mark.parametrize("where", ["tensor", "table"])
def test_changed_bytes_are_noticed(tmp_path: Path, where: str) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(7))
    file = MappedFile(tmp_path / "w", writable=True)
    if where == "tensor":
        file.tensor_bytes(1, 4)[-100] ^= 1
    else:
        file.table(1)[0] ^= 1
    with pytest.raises(CorruptWeights, match="did not match"):
        WeightReader.open(tmp_path / "w").pull(Version(0))


def test_a_torn_announcement_falls_back_to_the_version_before(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    writer.publish(Version(1), weights(1))
    with (tmp_path / "w").open("r+b") as file:
        file.seek(RECORD_OFFSETS[0] + 10)
        file.write(b"\xff")
    assert_holds(WeightReader.open(tmp_path / "w").pull(Version(0)), 0)


def test_a_channel_made_anew_is_noticed_by_its_readers(tmp_path: Path) -> None:
    create(tmp_path / "w").publish(Version(5), weights(5))
    reader = WeightReader.open(tmp_path / "w")
    assert_holds(reader.pull(Version(0)), 5)
    create(tmp_path / "w").publish(Version(2), weights(2))
    assert_holds(reader.pull(Version(0)), 2)


def test_closing_the_writer_removes_the_file_but_not_what_readers_hold(tmp_path: Path) -> None:
    writer = create(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = WeightReader.open(tmp_path / "w")
    writer.close()
    assert not (tmp_path / "w").exists()
    assert_holds(reader.pull(Version(0)), 0)
    reader.close()


def test_a_file_that_is_no_channel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="not a weight channel"):
        WeightReader.open(tmp_path / "w")


def test_the_same_name_gives_the_same_path() -> None:
    layout = layout_of(weights(0))
    assert channel_path("run-a", layout) == channel_path("run-a", layout) != channel_path("run-b", layout)
