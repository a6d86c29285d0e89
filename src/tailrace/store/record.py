"""One record of the payload store: a segment as bytes that can prove they are whole.

    magic (4) | header length (4) | body length (4) | crc32 (4) | header | body (arrays)

    header: start (4) | tokens (4) | version (8; -1: none) | epoch (8) | prompt (8) | member (4) | attempt (4) |
            flags (1: untruncated log-probs, 2: mask, 4: routing) | source (UTF-8)

All numbers are little-endian. The checksum covers both lengths, the header and the body, so a record that was
cut short, extended or changed anywhere is `DamagedRecord`. The body holds tokens (int32), log-probs (float32),
then, where the header says so, the untruncated log-probs (float32), the loss mask (uint8; absent: all ones) and the
experts of each token (`routing_bytes.py`).
A run of many responses writes and reads hundreds of thousands of records a step, hence no JSON here.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store import routing_bytes
from tailrace.store.record_frame import MAGIC, PREFIX, PREFIX_BYTES, checksum, framed, unframed
from tailrace.store.segment import Mask, Segment

_HEADER = struct.Struct("<IIqqqIIB")
_HAS_FULL, _HAS_MASK, _HAS_ROUTING = 1, 2, 4
_INT, _FLOAT, _BYTE = np.dtype("<i4"), np.dtype("<f4"), np.dtype("u1")
_ONES = np.ones(4096, np.uint8)
_ONES.flags.writeable = False


class RecordHeader(NamedTuple):
    response_id: ResponseId
    start: int
    version: Version | None
    num_tokens: int
    has_behaviour_logprobs: bool
    has_mask: bool
    has_routing: bool


class Record(NamedTuple):
    """A verified record inside a buffer."""

    header: RecordHeader
    body: memoryview
    num_bytes: int
    """Length of the whole record, prefix included."""

    def segment(self) -> Segment:
        header = self.header
        flags = _flags(header.has_behaviour_logprobs, header.has_mask, header.has_routing)
        return _segment(header.response_id, header.start, header.version, header.num_tokens, flags, self.body)


def _segment(
    response_id: ResponseId, start: int, version: Version | None, count: int, flags: int, body: memoryview
) -> Segment:
    position = 12 * count if flags & _HAS_FULL else 8 * count
    routing_at = position + count if flags & _HAS_MASK else position
    return Segment(
        response_id=response_id,
        start=start,
        version=version,
        tokens=np.frombuffer(body, _INT, count),
        logprobs=np.frombuffer(body, _FLOAT, count, offset=4 * count),
        behaviour_logprobs=np.frombuffer(body, _FLOAT, count, offset=8 * count) if flags & _HAS_FULL else None,
        mask=np.frombuffer(body, _BYTE, count, offset=position) if flags & _HAS_MASK else _ones(count),
        routing=routing_bytes.unpack(body[routing_at:], count) if flags & _HAS_ROUTING else None,
    )


def _flags(has_full: bool, has_mask: bool, has_routing: bool) -> int:
    return _HAS_FULL * has_full | _HAS_MASK * has_mask | _HAS_ROUTING * has_routing


def _ones(count: int) -> Mask:
    return _ONES[:count] if count <= len(_ONES) else np.ones(count, np.uint8)


def encode(segment: Segment) -> bytes:
    count = len(segment.tokens)
    arrays = [_typed(segment.tokens, _INT), _typed(segment.logprobs, _FLOAT)]
    if segment.behaviour_logprobs is not None:
        arrays.append(_typed(segment.behaviour_logprobs, _FLOAT))
    mask = _typed(segment.mask, _BYTE)
    has_mask = mask.tobytes() != b"\x01" * count
    if has_mask or mask.shape != (count,):
        arrays.append(mask)
    for array in arrays:
        if array.shape != (count,):
            shapes = [array.shape for array in arrays]
            raise ValueError(
                f"{segment.response_id}: the arrays of a segment must have one length, got shapes {shapes}"
            )
    body = [array.tobytes() for array in arrays]
    if segment.routing is not None:
        if len(segment.routing) != count:
            raise ValueError(
                f"{segment.response_id}: routing of {len(segment.routing)} tokens, the segment has {count}"
            )
        body.append(routing_bytes.pack(segment.routing))
    return framed(_encode_header(segment, count, has_mask), body)


def _typed(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    return array if array.dtype is dtype else np.asarray(array, dtype)


def _encode_header(segment: Segment, count: int, has_mask: bool) -> bytes:
    (source, epoch, prompt), member, attempt = segment.response_id
    version = -1 if segment.version is None else segment.version
    flags = _flags(segment.behaviour_logprobs is not None, has_mask, segment.routing is not None)
    return _HEADER.pack(segment.start, count, version, epoch, prompt, member, attempt, flags) + source.encode()


def decode(buffer: memoryview, offset: int = 0) -> Record:
    """Return the record that begins at `offset`; `DamagedRecord` if it is incomplete or its checksum is wrong."""
    frame = unframed(buffer, offset)
    return Record(header=_parse_header(bytes(frame.header)), body=frame.body, num_bytes=frame.num_bytes)


def read(data: bytes, response: ResponseId) -> Segment:
    """Return the segment of a record that is known to belong to this response; `DamagedRecord` as in `decode`."""
    magic, header_bytes, body_bytes, expected = PREFIX.unpack_from(data.ljust(PREFIX_BYTES))
    content = memoryview(data)[PREFIX_BYTES:]
    if magic != MAGIC or checksum(header_bytes, body_bytes, content) != expected:
        return decode(memoryview(data)).segment()  # says what is wrong with it
    start, count, version, _, _, _, _, flags = _HEADER.unpack_from(content)
    return _segment(response, start, None if version < 0 else version, count, flags, content[header_bytes:])


def _parse_header(data: bytes) -> RecordHeader:
    start, count, version, epoch, prompt, member, attempt, flags = _HEADER.unpack_from(data)
    source = data[_HEADER.size :].decode()
    return RecordHeader(
        response_id=ResponseId(GroupId(source, epoch, prompt), member, attempt),
        start=start,
        version=None if version < 0 else Version(version),
        num_tokens=count,
        has_behaviour_logprobs=bool(flags & _HAS_FULL),
        has_mask=bool(flags & _HAS_MASK),
        has_routing=bool(flags & _HAS_ROUTING),
    )
