"""Pulls of parts of a version, through a real channel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.address import ChannelAddress
from tailrace.weights.channel import CorruptWeights, Fetched, WeightSource
from tailrace.weights.puller import Puller
from tailrace.weights.sharding.converter import cut
from tailrace.weights.sharding.table import Box, Heads, Holding, Parameter, Scheme, Split, holdings, volume
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
from tailrace.weights.slots.mapped_file import MappedFile
from tailrace.weights.slots.shared_memory import create
from tailrace.weights.slots.two_slots import layout_of
from tailrace.weights.sources import open_source
from weights.models import are_equal, parameters, values

HEADS = Heads(num_query=4, num_kv=2, size=2)


class Recording:
    """A source that passes everything on and remembers which slices were fetched."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.fetched: list[Slice] = []
        self.is_closed = False

    def parameters(self) -> Sequence[Parameter]:
        return self._source.parameters()

    def senders(self) -> Sequence[Holding]:
        return self._source.senders()

    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched:
        found = self._source.fetch(minimum_version, transfers)
        self.fetched += found.slices
        return found

    def close(self) -> None:
        self.is_closed = True
        self._source.close()


class ShardedTrainer:
    """A source without a channel file: two workers hold one half of every parameter each."""

    def __init__(self, model: Sequence[Parameter], sent: dict[str, Tensor]) -> None:
        self._model, self._sent = model, sent
        self._workers = holdings(model, HEADS, Scheme(num_workers=2, split=Split.ROWS), side="trainer")
        self._tensors = {
            holding.worker: {piece.tensor: part(sent, piece.parameter, piece.box) for piece in holding.pieces}
            for holding in self._workers
        }

    def parameters(self) -> Sequence[Parameter]:
        return self._model

    def senders(self) -> Sequence[Holding]:
        return self._workers

    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched:
        held = {holding.worker: holding for holding in self._workers}
        copies = {t.slice: cut(held[t.sender], self._tensors[t.sender], t.slice).clone() for t in transfers}
        return Fetched(minimum_version, copies)

    def close(self) -> None:
        pass


class RecordingOpener:
    def __init__(self) -> None:
        self.sources: list[Recording] = []

    def __call__(self, address: ChannelAddress) -> Recording:
        self.sources.append(Recording(open_source(address)))
        return self.sources[-1]


def publish(path: Path, version: int, sent: dict[str, Tensor]) -> ChannelAddress:
    writer = create(path, layout_of(sent.items()))
    writer.publish(Version(version), sent.items())
    return writer.address


def part(sent: dict[str, Tensor], parameter: str, box: Box) -> Tensor:
    return sent[parameter][tuple(slice(start, stop) for start, stop in box)].contiguous()


def assert_holds_its_parts(holding: Holding, pulled: dict[str, Tensor], sent: dict[str, Tensor]) -> None:
    assert len(pulled) == len(holding.pieces)
    for piece in holding.pieces:
        assert are_equal(pulled[piece.parameter], part(sent, piece.parameter, piece.box))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_each_rank_with_a_puller_of_its_own_gets_its_part_of_every_parameter(
    tmp_path: Path, num_workers: int, dtype: str
) -> None:
    model = parameters(HEADS, dtype=dtype)
    sent = values(model)
    address = publish(tmp_path / "w", 4, sent)
    for rank in holdings(model, HEADS, Scheme(num_workers=num_workers, is_fused=True), side="engine"):
        version, [pulled] = Puller([rank], open_source).pull(address, Version(0))
        assert version == 4
        assert_holds_its_parts(rank, pulled, sent)


def test_two_ranks_each_fetch_only_their_slices_and_together_hold_the_whole(tmp_path: Path) -> None:
    model = parameters(HEADS)
    sent = values(model)
    address = publish(tmp_path / "w", 4, sent)
    rebuilt = {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    for rank in holdings(model, HEADS, Scheme(num_workers=2), side="engine"):
        opener = RecordingOpener()
        _, [pulled] = Puller([rank], opener).pull(address, Version(4))
        [source] = opener.sources
        assert len(set(source.fetched)) == len(source.fetched)
        assert sum(volume(slice.box) for slice in source.fetched) == sum(volume(piece.box) for piece in rank.pieces)
        assert_holds_its_parts(rank, pulled, sent)
        for piece in rank.pieces:
            rebuilt[piece.parameter][tuple(slice(*side) for side in piece.box)] = pulled[piece.parameter]
    assert all(are_equal(rebuilt[name], tensor) for name, tensor in sent.items())


def test_one_receiver_of_two_ranks_fetches_every_slice_once_and_gives_both_the_same_version(tmp_path: Path) -> None:
    model = parameters(HEADS)
    sent = values(model)
    address = publish(tmp_path / "w", 4, sent)
    ranks = holdings(model, HEADS, Scheme(num_workers=2, is_fused=True), side="engine")
    opener = RecordingOpener()
    version, pulled = Puller(ranks, opener).pull(address, Version(0))
    assert version == 4
    for rank, weights in zip(ranks, pulled, strict=True):
        assert_holds_its_parts(rank, weights, sent)
    [source] = opener.sources
    assert len(set(source.fetched)) == len(source.fetched)
    assert sum(volume(slice.box) for slice in source.fetched) == sum(tensor.numel() for tensor in sent.values())


def test_another_kind_of_source_with_several_senders_serves_the_same_puller() -> None:
    model = parameters(HEADS)
    sent = values(model)
    ranks = holdings(model, HEADS, Scheme(num_workers=3, is_fused=True), side="engine")
    address = ChannelAddress(kind="sharded trainer", location="")
    version, pulled = Puller(ranks, lambda _: ShardedTrainer(model, sent)).pull(address, Version(2))
    assert version == 2
    for rank, weights in zip(ranks, pulled, strict=True):
        assert_holds_its_parts(rank, weights, sent)


def test_a_receiver_that_holds_nothing_fetches_nothing_and_learns_the_version(tmp_path: Path) -> None:
    address = publish(tmp_path / "w", 4, values(parameters(HEADS)))
    assert Puller([], open_source).pull(address, Version(4)) == (4, ())


def test_a_source_is_opened_once_per_address_and_closed_when_the_address_changes(tmp_path: Path) -> None:
    model = parameters(HEADS)
    sent = values(model)
    first, second = publish(tmp_path / "a", 4, sent), publish(tmp_path / "b", 5, sent)
    opener = RecordingOpener()
    puller = Puller(holdings(model, HEADS, Scheme(), side="engine"), opener)
    found = [puller.pull(address, Version(0)).version for address in (first, first, second, second)]
    assert found == [4, 4, 5, 5]
    assert [source.is_closed for source in opener.sources] == [True, False]


def test_an_address_of_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kind 'pigeon'; known kinds: shared memory, CUDA IPC"):
        open_source(ChannelAddress(kind="pigeon", location="roof"))


def test_changed_bytes_of_a_tensor_that_is_fetched_in_part_are_noticed(tmp_path: Path) -> None:
    model = parameters(HEADS)
    address = publish(tmp_path / "w", 0, values(model))
    [first, _] = holdings(model, HEADS, Scheme(num_workers=2), side="engine")
    MappedFile(tmp_path / "w", writable=True).tensor_bytes(1, 0)[3] ^= 1
    with pytest.raises(CorruptWeights, match="differ from their checksums"):
        Puller([first], open_source).pull(address, Version(0))
