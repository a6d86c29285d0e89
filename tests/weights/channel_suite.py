"""What a weight channel promises, whatever it is made of. The fixture ``kind`` says which kind is tested."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, VersionNotPublished, WriterLost
from tailrace.weights.control_file import RECORD_OFFSETS
from tailrace.weights.slot_locks import ReaderWait
from tailrace.weights.transfer_plan import Slice, Transfer
from tailrace.weights.two_slots import WeightWriter, layout_of
from weights.channel_kinds import ChannelKind, make_writer
from weights.contents import SHAPES, weights


def create(kind: ChannelKind, path: Path) -> WeightWriter:
    return make_writer(kind, path, layout_of(weights(0)))


def assert_holds(pulled: tuple[Version, dict[str, Tensor]], version: int) -> None:
    assert pulled[0] == version
    assert list(pulled[1]) == list(SHAPES)
    for name, expected in weights(version):
        assert torch.equal(pulled[1][name].cpu(), expected)


def test_what_is_published_is_pulled_bit_for_bit(kind: ChannelKind, tmp_path: Path) -> None:
    sent = [("a", torch.randn(33, 7)), ("b", torch.randn(129).bfloat16()), ("c", torch.tensor(5))]
    writer = make_writer(kind, tmp_path / "w", layout_of(sent))
    writer.publish(Version(3), ((name, tensor.to(kind.device)) for name, tensor in reversed(sent)))
    version, received = kind.reader(tmp_path / "w").fetch_whole(Version(0))
    assert version == 3
    for name, tensor in sent:
        assert received[name].device == kind.device
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name].cpu(), tensor)


def test_a_pull_gives_the_newest_version_and_keeps_its_copy(kind: ChannelKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    reader = kind.reader(tmp_path / "w")
    kept = []
    for version in range(4):
        writer.publish(Version(version), weights(version))
        assert reader.latest_version() == version
        kept.append(reader.fetch_whole(Version(version)))
    for version, pulled in enumerate(kept):
        assert_holds(pulled, version)


def test_a_version_that_is_not_there_is_said_so(kind: ChannelKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    reader = kind.reader(tmp_path / "w")
    assert reader.latest_version() is None
    with pytest.raises(VersionNotPublished, match="version 0 is not published; the channel holds none"):
        reader.fetch_whole(Version(0))
    writer.publish(Version(4), weights(4))
    with pytest.raises(LookupError, match="version 5 is not published; the channel holds 4"):
        reader.fetch_whole(Version(5))


@pytest.mark.parametrize("version", [2, 1])
def test_a_version_that_does_not_grow_is_refused(kind: ChannelKind, tmp_path: Path, version: int) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(2), weights(2))
    with pytest.raises(ValueError, match=f"cannot publish version {version} after version 2"):
        writer.publish(Version(version), weights(version))
    assert_holds(kind.reader(tmp_path / "w").fetch_whole(Version(0)), 2)


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


@pytest.mark.parametrize("failure", ["shape", "dtype", "name", "missing", "crash"])
def test_a_publish_that_fails_leaves_the_old_version_and_a_working_channel(
    kind: ChannelKind, tmp_path: Path, failure: str
) -> None:
    writer = create(kind, tmp_path / "w")
    reader = kind.reader(tmp_path / "w")
    writer.publish(Version(0), weights(0))
    writer.publish(Version(1), weights(1))
    with pytest.raises(RuntimeError if failure == "crash" else ValueError, match=r"head|tail|crash"):
        writer.publish(Version(2), failing_weights(failure))
    assert_holds(reader.fetch_whole(Version(0)), 1)
    writer.publish(Version(2), weights(2))
    assert_holds(reader.fetch_whole(Version(2)), 2)


def test_a_publish_waits_for_those_who_read_what_it_overwrites_and_a_pull_for_nobody(
    kind: ChannelKind, tmp_path: Path
) -> None:
    writer = create(kind, tmp_path / "w")
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
        assert_holds(kind.reader(tmp_path / "w").fetch_whole(Version(0)), 1)

    thread = threading.Thread(target=publish_twice)
    reader = kind.meddled_reader(tmp_path / "w", meddle)
    assert_holds(reader.fetch_whole(Version(0)), 0)
    thread.join()
    assert_holds(reader.fetch_whole(Version(0)), 2)


def test_a_reader_that_does_not_move_on_is_overtaken_and_its_copy_not_believed(
    kind: ChannelKind, tmp_path: Path
) -> None:
    file = kind.file(tmp_path / "w", layout_of(weights(0)))
    writer = WeightWriter(file, ReaderWait(file.locks, limit_s=0.0))
    writer.publish(Version(0), weights(0))

    def meddle() -> None:
        writer.publish(Version(1), weights(1))
        writer.publish(Version(2), weights(2))

    assert_holds(kind.meddled_reader(tmp_path / "w", meddle).fetch_whole(Version(0)), 2)


def test_a_pull_in_the_middle_of_a_publish_gives_the_version_before(kind: ChannelKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    reader = kind.reader(tmp_path / "w")

    def pulling(version: int) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in weights(version):
            assert_holds(reader.fetch_whole(Version(0)), version - 1)
            yield name, tensor

    writer.publish(Version(0), weights(0))
    for version in range(1, 4):
        writer.publish(Version(version), pulling(version))


@pytest.mark.parametrize("where", ["tensor", "table"])
def test_changed_bytes_are_noticed(kind: ChannelKind, tmp_path: Path, where: str) -> None:
    file = kind.file(tmp_path / "w", layout_of(weights(0)))
    WeightWriter(file).publish(Version(0), weights(7))
    if where == "tensor":
        kind.change_byte(file, 1, 4, 1000)  # type: ignore[arg-type]
    else:
        file.table(1)[0] ^= 1
    with pytest.raises(CorruptWeights, match="differ from their checksums"):
        kind.reader(tmp_path / "w").fetch_whole(Version(0))


def test_a_torn_announcement_falls_back_to_the_version_before(kind: ChannelKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(0), weights(0))
    writer.publish(Version(1), weights(1))
    with (tmp_path / "w").open("r+b") as file:
        file.seek(RECORD_OFFSETS[0] + 10)
        file.write(b"\xff")
    assert_holds(kind.reader(tmp_path / "w").fetch_whole(Version(0)), 0)


def test_a_channel_made_anew_is_noticed_by_its_readers(kind: ChannelKind, tmp_path: Path) -> None:
    first = create(kind, tmp_path / "w")
    first.publish(Version(5), weights(5))
    reader = kind.reader(tmp_path / "w")
    assert_holds(reader.fetch_whole(Version(0)), 5)
    second = create(kind, tmp_path / "w")
    second.publish(Version(2), weights(2))
    assert_holds(reader.fetch_whole(Version(0)), 2)


def test_closing_the_writer_removes_the_file_and_a_reader_never_gets_wrong_weights(
    kind: ChannelKind, tmp_path: Path
) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = kind.reader(tmp_path / "w")
    assert_holds(reader.fetch_whole(Version(0)), 0)
    writer.close()
    assert not (tmp_path / "w").exists()
    if kind.outlives_its_writer:
        assert_holds(reader.fetch_whole(Version(0)), 0)
    else:
        with pytest.raises(WriterLost, match="the process that published the weights has ended"):
            reader.fetch_whole(Version(0))
    reader.close()


PARTS = (Slice("embed", ((3, 20), (1, 16))), Slice("norm", ((2, 4),)), Slice("head", ((0, 700), (0, 41))))


def test_parts_of_a_version_are_copies_of_their_own(kind: ChannelKind, tmp_path: Path) -> None:
    sent = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    writer = make_writer(kind, tmp_path / "w", layout_of(sent.items()))
    writer.publish(Version(1), sent.items())
    transfers = [Transfer(slice=part, sender="parameter server", receiver="engine") for part in PARTS]
    version, found = kind.reader(tmp_path / "w").fetch(Version(1), transfers)
    for later in (2, 3):
        writer.publish(Version(later), weights(later))
    assert version == 1
    assert set(found) == set(PARTS)
    for part, tensor in found.items():
        expected = sent[part.parameter][tuple(slice(*side) for side in part.box)]
        assert tensor.device == kind.device
        assert torch.equal(tensor.cpu(), expected)


def test_a_changed_byte_is_noticed_by_those_who_copy_a_part_of_its_tensor_only(
    kind: ChannelKind, tmp_path: Path
) -> None:
    file = kind.file(tmp_path / "w", layout_of(weights(0)))
    WeightWriter(file).publish(Version(0), weights(0))
    kind.change_byte(file, 1, 0, 3)  # type: ignore[arg-type]
    reader = kind.reader(tmp_path / "w")
    damaged, sound = (Transfer(slice=part, sender="parameter server", receiver="engine") for part in PARTS[:2])
    assert reader.fetch(Version(0), [sound]).version == 0
    with pytest.raises(CorruptWeights, match="differ from their checksums"):
        reader.fetch(Version(0), [sound, damaged])


def test_a_reader_that_needs_nothing_learns_the_version(kind: ChannelKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(4), weights(4))
    assert kind.reader(tmp_path / "w").fetch(Version(0), []) == (4, {})


def test_a_file_that_is_no_channel_is_refused(kind: ChannelKind, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="not a weight channel"):
        kind.reader(tmp_path / "w")
