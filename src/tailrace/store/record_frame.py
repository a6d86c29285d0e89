"""The frame of a record: its lengths and its checksum. `record.py` says what is inside. No numpy is needed here."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

MAGIC = b"TRS2"
PREFIX = struct.Struct("<4sIII")
PREFIX_BYTES = PREFIX.size
_LENGTHS = struct.Struct("<II")


class DamagedRecord(Exception):
    """The bytes at this place are not a whole record."""


class DamagedStore(Exception):
    """A record that was once whole cannot be read back."""


class Frame(NamedTuple):
    """A verified record inside a buffer."""

    header: memoryview
    body: memoryview
    num_bytes: int
    """Length of the whole record, prefix included."""


def framed(header: bytes, arrays: Sequence[bytes]) -> bytes:
    """A record with these arrays as its body."""
    content = b"".join((header, *arrays))
    header_bytes, body_bytes = len(header), len(content) - len(header)
    return PREFIX.pack(MAGIC, header_bytes, body_bytes, checksum(header_bytes, body_bytes, content)) + content


def unframed(buffer: memoryview, offset: int = 0) -> Frame:
    """The record that begins at `offset`; `DamagedRecord` unless all of it is there and its checksum holds."""
    if offset + PREFIX_BYTES > len(buffer):
        raise DamagedRecord("its first bytes are missing")
    magic, header_bytes, body_bytes, expected = PREFIX.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise DamagedRecord(f"it begins with {magic!r}, expected {MAGIC!r}")
    begin, end = offset + PREFIX_BYTES, offset + PREFIX_BYTES + header_bytes + body_bytes
    if end > len(buffer):
        raise DamagedRecord(f"{end - len(buffer)} of its bytes are missing")
    content = buffer[begin:end]
    if checksum(header_bytes, body_bytes, content) != expected:
        raise DamagedRecord("its checksum does not match")
    return Frame(header=content[:header_bytes], body=content[header_bytes:], num_bytes=end - offset)


def checksum(header_bytes: int, body_bytes: int, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(_LENGTHS.pack(header_bytes, body_bytes)))
