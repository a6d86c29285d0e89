"""Addresses of responses: a process that can read the store's files reads a response without building an index.

An address is valid until the store releases the response. When `PayloadStore.append` returns, the operating system has
the bytes, so the address can be used at once. `compact` deletes no file with a response that is still needed.
"""

from __future__ import annotations

from tailrace.core.ids import ResponseId
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.place import ResponseAddress, StoredPlace
from tailrace.store.segment import ResponsePayload, Segment, join


def address_of(store: PayloadReader, response: ResponseId) -> ResponseAddress:
    return ResponseAddress(response_id=response, places=store.places(response))


class AddressReader(PayloadReader):
    """Opens the files that it is asked for, and no others. Every read verifies the checksum."""

    def read(self, address: ResponseAddress) -> ResponsePayload:
        return join(address.response_id, [self._read(address.response_id, place) for place in address.places])

    def _segment(self, response: ResponseId, place: StoredPlace) -> Segment:
        if place.file not in self._descriptors:
            self._open_file(place.file)
        return super()._segment(response, place)
