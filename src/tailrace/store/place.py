"""Where responses lie in the files of a payload store. Importing this needs no numpy.

An address travels as 40 bytes for each of its segments: a run of many responses sends thousands of them a step.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tailrace.core.ids import ResponseId

_PLACE = struct.Struct("<5q")


class StoredPlace(NamedTuple):
    """Where a segment lies, and how many of its tokens still count."""

    file: int
    offset: int
    num_bytes: int
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAddress:
    """Where a response lies in the files of a store."""

    response_id: ResponseId
    places: tuple[StoredPlace, ...]

    def __reduce__(self) -> tuple[Callable[..., ResponseAddress], tuple[object, ...]]:
        numbers = struct.pack(f"<{5 * len(self.places)}q", *chain.from_iterable(self.places))
        return _unpacked, (self.response_id, numbers)


def _unpacked(response: ResponseId, numbers: bytes) -> ResponseAddress:
    return ResponseAddress(response_id=response, places=tuple(map(StoredPlace._make, _PLACE.iter_unpack(numbers))))


def payload_file(directory: Path, number: int) -> Path:
    return directory / f"payload-{number:06d}.bin"
