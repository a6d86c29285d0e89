"""One record of the payload store: a segment as bytes that can prove they are whole.

    magic (4) | header length (4) | body length (4) | crc32 (4) | header (JSON) | body (arrays)

All numbers are little-endian. The checksum covers both lengths, the header and the body, so a record that was
cut short, extended or changed anywhere is `DamagedRecord`. The body holds tokens (int32), log-probs (float32),
then, where the header says so, the untruncated log-probs (float32) and the loss mask (uint8; absent: all ones).
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from tailrace.core.ids import TrajectoryId, Version
from tailrace.store.segment import Segment

MAGIC = b"TRS1"
_PREFIX = struct.Struct("<4sIII")
_LENGTHS = struct.Struct("<II")
PREFIX_BYTES = _PREFIX.size


class DamagedRecord(Exception):
    """The bytes at this place are not a whole record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHeader:
    trajectory: TrajectoryId
    start: int
    version: Version | None
    num_tokens: int
    has_full_logprobs: bool
    has_mask: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A verified record inside a buffer."""

    header: RecordHeader
    body: memoryview
    num_bytes: int
    """Length of the whole record, prefix included."""

    def segment(self) -> Segment:
        header, count, position = self.header, self.header.num_tokens, 0

        def take(dtype: str) -> np.ndarray:
            nonlocal position
            array = np.frombuffer(self.body, dtype=dtype, count=count, offset=position)
            position += array.nbytes
            return array

        tokens, logprobs = take("<i4"), take("<f4")
        return Segment(
            trajectory=header.trajectory,
            start=header.start,
            version=header.version,
            tokens=tokens,
            logprobs=logprobs,
            full_logprobs=take("<f4") if header.has_full_logprobs else None,
            mask=take("u1") if header.has_mask else np.ones(count, np.uint8),
        )


def encode(segment: Segment) -> bytes:
    count = len(segment.tokens)
    arrays = [np.asarray(segment.tokens, "<i4"), np.asarray(segment.logprobs, "<f4")]
    if segment.full_logprobs is not None:
        arrays.append(np.asarray(segment.full_logprobs, "<f4"))
    mask = np.asarray(segment.mask, "u1")
    has_mask = not bool(np.all(mask == 1))
    if has_mask or mask.shape != (count,):
        arrays.append(mask)
    if any(array.shape != (count,) for array in arrays):
        shapes = [array.shape for array in arrays]
        raise ValueError(f"{segment.trajectory}: the arrays of a segment must have one length, got shapes {shapes}")
    header = json.dumps(
        {
            "trajectory": str(segment.trajectory),
            "start": segment.start,
            "version": segment.version,
            "count": count,
            "full": segment.full_logprobs is not None,
            "mask": has_mask,
        },
        separators=(",", ":"),
    ).encode()
    content = header + b"".join(array.tobytes() for array in arrays)
    lengths = (len(header), len(content) - len(header))
    return _PREFIX.pack(MAGIC, *lengths, _checksum(*lengths, content)) + content


def decode(buffer: memoryview, offset: int = 0) -> Record:
    """The record that begins at `offset`; `DamagedRecord` unless all of it is there and its checksum holds."""
    if offset + PREFIX_BYTES > len(buffer):
        raise DamagedRecord("its first bytes are missing")
    magic, header_bytes, body_bytes, checksum = _PREFIX.unpack_from(buffer, offset)
    if magic != MAGIC:
        raise DamagedRecord(f"it begins with {magic!r}, expected {MAGIC!r}")
    begin, end = offset + PREFIX_BYTES, offset + PREFIX_BYTES + header_bytes + body_bytes
    if end > len(buffer):
        raise DamagedRecord(f"{end - len(buffer)} of its bytes are missing")
    content = buffer[begin:end]
    if _checksum(header_bytes, body_bytes, content) != checksum:
        raise DamagedRecord("its checksum does not match")
    return Record(
        header=_parse_header(bytes(content[:header_bytes])), body=content[header_bytes:], num_bytes=end - offset
    )


def _parse_header(text: bytes) -> RecordHeader:
    fields = json.loads(text)
    return RecordHeader(
        trajectory=TrajectoryId.parse(fields["trajectory"]),
        start=fields["start"],
        version=fields["version"],
        num_tokens=fields["count"],
        has_full_logprobs=fields["full"],
        has_mask=fields["mask"],
    )


def _checksum(header_bytes: int, body_bytes: int, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(_LENGTHS.pack(header_bytes, body_bytes)))
