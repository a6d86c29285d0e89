"""Addresses of responses: a process that can read the store's files reads a response without building an index.

An address is valid until the store releases the response. When `PayloadStore.append` returns, the operating system has
the bytes, so the address can be used at once. `compact` deletes no file with a response that is still needed.
"""

from __future__ import annotations

from tailrace.core.ids import TrajectoryId
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.place import ResponseAddress, StoredPlace
from tailrace.store.segment import Response, Segment, join


def address_of(store: PayloadReader, trajectory: TrajectoryId) -> ResponseAddress:
    return ResponseAddress(trajectory=trajectory, places=store.places(trajectory))


class AddressReader(PayloadReader):
    """Opens the files that it is asked for, and no others. Every read verifies the checksum."""

    def read(self, address: ResponseAddress) -> Response:
        return join(address.trajectory, [self._read(address.trajectory, place) for place in address.places])

    def _segment(self, trajectory: TrajectoryId, place: StoredPlace) -> Segment:
        if place.file not in self._descriptors:
            self._open_file(place.file)
        return super()._segment(trajectory, place)
