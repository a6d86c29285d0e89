"""Reads the tokens of a response by its address, and nothing else of it. Importing this needs no numpy."""

from __future__ import annotations

import os
import struct
from itertools import groupby
from pathlib import Path

from tailrace.store.place import ResponseAddress, StoredPlace, payload_file
from tailrace.store.record_frame import DamagedRecord, DamagedStore, unframed


def read_tokens(directory: Path, address: ResponseAddress) -> tuple[int, ...]:
    """The tokens; `DamagedStore` if a checksum does not hold, `OSError` if a file is not there."""
    tokens: list[int] = []
    for number, places in groupby(address.places, key=lambda place: place.file):
        path = payload_file(directory, number)
        with path.open("rb", buffering=0) as file:
            for place in places:
                if place.start != len(tokens):
                    raise ValueError(
                        f"{address.response_id}: a segment starts at {place.start}, expected {len(tokens)}"
                    )
                tokens += _tokens_at(file.fileno(), path, place)
    return tuple(tokens)


def unpack_tokens(data: bytes | memoryview, count: int) -> tuple[int, ...]:
    """The first tokens of little-endian int32 numbers."""
    return struct.unpack_from(f"<{count}i", data)


def _tokens_at(descriptor: int, path: Path, place: StoredPlace) -> tuple[int, ...]:
    data = os.pread(descriptor, place.num_bytes, place.offset)
    try:
        return unpack_tokens(unframed(memoryview(data)).body, place.num_tokens)
    except DamagedRecord as damage:
        raise DamagedStore(f"{path}, byte {place.offset}: {damage}") from damage
