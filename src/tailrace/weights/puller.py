"""The receiving side of a pull: fetches the slices that the receiver holds, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.core.ids import Version
from tailrace.weights.address import ChannelAddress
from tailrace.weights.channel import WeightSource
from tailrace.weights.sharding.converter import gather
from tailrace.weights.sharding.table import Holding
from tailrace.weights.sharding.transfer_plan import Links, Slice, Transfer, plan_transfers

if TYPE_CHECKING:
    from torch import Tensor


class PulledWeights(NamedTuple):
    version: Version
    weights: tuple[dict[str, Tensor], ...]
    """For each holding, in the receiver's order: its part of each of its parameters, by Hugging Face name."""


class Puller:
    """Pulls versions for one receiver, which may have several holdings (one per rank).

    All holdings of the receiver get the same version. Ranks in processes of their own have a puller each.
    """

    def __init__(
        self,
        receiver: Sequence[Holding],
        open_source: Callable[[ChannelAddress], WeightSource],
        links: Links | None = None,
    ) -> None:
        self._receiver, self._open_source = tuple(receiver), open_source
        self._links = Links() if links is None else links
        self._opened: _OpenedSource | None = None
        self.num_bytes = 0
        """Bytes that the last pull fetched. What several holdings have in common is fetched once."""

    def pull(self, address: ChannelAddress, minimum_version: Version) -> PulledWeights:
        """Pull the newest version, which must be at least ``minimum_version``."""
        opened = self._open(address)
        version, slices = opened.source.fetch(minimum_version, opened.transfers)
        self.num_bytes = sum(tensor.nbytes for tensor in slices.values())
        return PulledWeights(version, tuple(_parts(self._receiver, slices)))

    def _open(self, address: ChannelAddress) -> _OpenedSource:
        """Return the open source of this address. A different one that was open before is closed."""
        if self._opened is None or self._opened.address != address:
            if self._opened is not None:
                self._opened.source.close()
                self._opened = None
            source = self._open_source(address)
            transfers = plan_transfers(source.parameters(), source.senders(), self._receiver, self._links)
            self._opened = _OpenedSource(address, source, transfers)
        return self._opened


class _OpenedSource(NamedTuple):
    address: ChannelAddress
    source: WeightSource
    transfers: tuple[Transfer, ...]


def _parts(receiver: Sequence[Holding], slices: dict[Slice, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The part of each holding, in the order of its pieces. Slices are dropped as soon as they are used."""
    found: list[dict[str, Tensor]] = [{} for _ in receiver]
    for number, piece, tensor in gather(receiver, slices):
        found[number][piece.parameter] = tensor
    for holding, own in zip(receiver, found, strict=True):
        yield {piece.parameter: own[piece.parameter] for piece in holding.pieces}
