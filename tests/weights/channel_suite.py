"""What a weight channel promises, whatever it is made of. The fixture ``kind`` says which kind is tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import VersionNotPublished, WeightSink
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
from tailrace.weights.slots.two_slots import layout_of
from weights.channel_kinds import ChannelKind
from weights.contents import SHAPES, weights


def create(kind: ChannelKind, path: Path) -> WeightSink:
    return kind.writer(path, layout_of(weights(0)))


def assert_holds(pulled: tuple[Version, dict[str, Tensor]], version: int) -> None:
    assert pulled[0] == version
    assert list(pulled[1]) == list(SHAPES)
    for name, expected in weights(version):
        assert torch.equal(pulled[1][name].cpu(), expected)


def test_what_is_published_is_pulled_bit_for_bit(kind: ChannelKind, tmp_path: Path) -> None:
    sent = [("a", torch.randn(33, 7)), ("b", torch.randn(129).bfloat16()), ("c", torch.tensor(5))]
    writer = kind.writer(tmp_path / "w", layout_of(sent))
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


PARTS = (Slice("embed", ((3, 20), (1, 16))), Slice("norm", ((2, 4),)), Slice("head", ((0, 700), (0, 41))))


def test_parts_of_a_version_are_copies_of_their_own(kind: ChannelKind, tmp_path: Path) -> None:
    sent = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    writer = kind.writer(tmp_path / "w", layout_of(sent.items()))
    writer.publish(Version(1), sent.items())
    reader = kind.reader(tmp_path / "w")
    [sender] = reader.senders()
    transfers = [Transfer(slice=part, sender=sender.worker, receiver="engine") for part in PARTS]
    version, found = reader.fetch(Version(1), transfers)
    for later in (2, 3):
        writer.publish(Version(later), weights(later))
    assert version == 1
    assert set(found) == set(PARTS)
    for part, tensor in found.items():
        expected = sent[part.parameter][tuple(slice(*side) for side in part.box)]
        assert tensor.device == kind.device
        assert torch.equal(tensor.cpu(), expected)


def test_a_reader_that_needs_nothing_learns_the_version(kind: ChannelKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(4), weights(4))
    assert kind.reader(tmp_path / "w").fetch(Version(0), []) == (4, {})


def test_receivers_may_change_their_number_and_their_parts(kind: ChannelKind, tmp_path: Path) -> None:
    """As instances of another parallel size do: one whole reader, then two that share the rows, then the first one."""
    writer = create(kind, tmp_path / "w")
    alone = kind.reader(tmp_path / "w")
    writer.publish(Version(1), weights(1))
    assert_holds(alone.fetch_whole(Version(1)), 1)
    writer.publish(Version(2), weights(2))
    for number in range(2):
        reader = kind.reader(tmp_path / "w")
        [sender] = reader.senders()
        own = [_rows(name, shape, number) for name, shape in SHAPES.items() if shape]
        transfers = [Transfer(slice=each, sender=sender.worker, receiver=f"rank {number}") for each in own]
        version, found = reader.fetch(Version(2), transfers)
        assert version == 2
        assert set(found) == set(own), "its own slices, and no others"
        for name, tensor in weights(2):
            for each in own:
                if each.parameter == name:
                    expected = tensor[tuple(slice(*side) for side in each.box)]
                    assert torch.equal(found[each].cpu(), expected.cpu())
    writer.publish(Version(3), weights(3))
    assert_holds(alone.fetch_whole(Version(3)), 3)


def _rows(name: str, shape: tuple[int, ...], number: int) -> Slice:
    """The first or the second half of the rows."""
    half = shape[0] // 2
    return Slice(name, ((0, half) if number == 0 else (half, shape[0]), *((0, side) for side in shape[1:])))
