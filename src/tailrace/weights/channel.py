"""What a weight channel promises, whatever it is made of (shared memory, an object store, device to device).

* One writer, any number of readers; versions only grow.
* ``pull`` gives one whole version, never a mixture, and says which one it is.
* A publish that fails, or whose process dies, leaves the version before it readable.
* Readers share, and never wait for a publish: the version before it stays where it is meanwhile.
* The writer comes first. A publish overwrites what is oldest; it waits for those who still read that, for nobody who
  came later, and neither for the dead nor without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace.core.ids import Version

if TYPE_CHECKING:
    from torch import Tensor


class Pulled(NamedTuple):
    version: Version
    weights: dict[str, Tensor]
    """Copies of one's own, by Hugging Face name."""


class VersionNotPublished(LookupError):
    """The channel does not hold the version asked for, nor a later one."""


class CorruptWeights(RuntimeError):
    """No copy of what the channel holds matches its checksums."""


class WeightSink(Protocol):
    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None: ...
    def close(self) -> None: ...


class WeightSource(Protocol):
    def pull(self, minimum_version: Version) -> Pulled:
        """The newest version, which is at least ``minimum_version``, or ``VersionNotPublished``."""
        ...

    def close(self) -> None: ...
