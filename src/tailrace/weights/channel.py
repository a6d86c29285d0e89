"""What a weight channel promises, whatever it is made of (shared memory, an object store, device to device).

* It has one writer and any number of readers. Version numbers only grow.
* One ``fetch`` returns slices of one version, never of two, and says which version it is.
* If a publish fails, the previous version stays readable. If the writer's process dies, a fetch returns the previous
  version or raises ``WriterLost``, whatever the channel is made of.
* A reader never waits for a publish: meanwhile it reads the previous version.
* A publish overwrites the oldest version. It waits for reads of that version that are still going on, but not for reads
  that began later, not for dead readers, and never longer than a limit.

The writer's side is a ``WeightSink``; it has a ``ChannelAddress``. A reader opens that address (``weights/sources.py``)
and gets a ``WeightSource``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.core.ids import Version
from tailrace.weights.address import ChannelAddress
from tailrace.weights.sharding.table import Holding, Parameter
from tailrace.weights.sharding.transfer_plan import Slice, Transfer

if TYPE_CHECKING:
    from torch import Tensor


class Fetched(NamedTuple):
    version: Version
    slices: dict[Slice, Tensor]
    """Copies that belong to the caller."""


class VersionNotPublished(LookupError):
    """The channel holds neither the version asked for nor a later one."""


class CorruptWeights(RuntimeError):
    """Every copy read from the channel differs from its checksums."""


class WriterLost(RuntimeError):
    """The writer has ended, and its weights with it. A new writer makes a new channel."""


class WeightSink(Protocol):
    @property
    def address(self) -> ChannelAddress: ...
    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None: ...
    def close(self) -> None: ...


class WeightSource(Protocol):
    def parameters(self) -> Sequence[Parameter]:
        """The parameters of the model that is published."""
        ...

    def senders(self) -> Sequence[Holding]:
        """The workers that slices can be fetched from, and what each of them holds."""
        ...

    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched:
        """Fetch these slices of the newest version.

        ``VersionNotPublished``: the newest is below ``minimum_version``. ``WriterLost``: its writer has ended.
        """
        ...

    def close(self) -> None: ...
