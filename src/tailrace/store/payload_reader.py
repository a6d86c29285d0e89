"""A read-only view of a payload store: nothing here writes, repairs or takes the writer's lock.

A damaged record at the end of the last file is ignored, because its writer may still be writing it. Damage in an
earlier file raises `DamagedStore` with file and offset. Every read verifies the checksum. The index in memory holds
places, never arrays.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.core.ids import ResponseId
from tailrace.store.place import StoredPlace, payload_file
from tailrace.store.record import RecordHeader, decode, read
from tailrace.store.record_frame import DamagedRecord, DamagedStore
from tailrace.store.segment import ResponsePayload, Segment, join


class PayloadReader:
    """Owns the index of what a directory of payload files holds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._places: dict[ResponseId, list[StoredPlace]] = {}
        self._descriptors: dict[int, int] = {}

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """Open the store as it is now. Records that are appended later are not seen."""
        reader = cls(Path(directory))
        try:
            reader._scan()
        except BaseException:  # whatever went wrong, what did not open must not keep files open
            reader.close()
            raise
        return reader

    def length(self, response: ResponseId) -> int:
        """Tokens held of this response; 0 for an unknown one."""
        places = self._places.get(response)
        return places[-1].start + places[-1].num_tokens if places else 0

    def held(self) -> tuple[ResponseId, ...]:
        """Every response with at least one stored segment, in the order of first segments."""
        return tuple(self._places)

    def response(self, response: ResponseId) -> ResponsePayload:
        return join(response, [self._read(response, place) for place in self.places(response)])

    def places(self, response: ResponseId) -> tuple[StoredPlace, ...]:
        """Where its segments lie, in order."""
        if (places := self._places.get(response)) is None:
            raise LookupError(f"the payload store {self.directory} holds nothing of {response}")
        return tuple(places)

    def close(self) -> None:
        """Close the files. No method may be called after this."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scan(self) -> None:
        numbers = sorted(int(path.stem.removeprefix("payload-")) for path in self.directory.glob("payload-*.bin"))
        for number in numbers:
            self._open_file(number)
            self._scan_file(number, is_last=number == numbers[-1])

    def _scan_file(self, number: int, *, is_last: bool) -> tuple[int, int]:
        """Index a file. Return the size of its undamaged part, and its whole size."""
        offset, buffer = 0, memoryview(self._path(number).read_bytes())
        while offset < len(buffer):
            try:
                record = decode(buffer, offset)
            except DamagedRecord as damage:
                if not is_last:
                    raise DamagedStore(f"{self._path(number)}, byte {offset}: {damage}") from damage
                break
            self._index(record.header, number, offset, record.num_bytes)
            offset += record.num_bytes
        return offset, len(buffer)

    def _index(self, header: RecordHeader, number: int, offset: int, num_bytes: int) -> None:
        if header.start > self.length(header.response_id):
            # The records between were deleted by compaction: either the response was released, or a later record,
            # which starts further left and follows in the scan, replaced this one.
            return
        place = StoredPlace(
            file=number, offset=offset, num_bytes=num_bytes, start=header.start, num_tokens=header.num_tokens
        )
        self._place(header.response_id, place)

    def _place(self, response: ResponseId, place: StoredPlace) -> None:
        places = self._places.setdefault(response, [])
        while places and places[-1].start >= place.start:
            places.pop()
        if places:
            last = places[-1]
            if last.start + last.num_tokens > place.start:
                places[-1] = last._replace(num_tokens=place.start - last.start)
        places.append(place)

    def _read(self, response: ResponseId, place: StoredPlace) -> Segment:
        """Return the tokens of a segment that no later segment replaced."""
        return _shorten(self._segment(response, place), place.num_tokens)

    def _segment(self, response: ResponseId, place: StoredPlace) -> Segment:
        data = os.pread(self._descriptors[place.file], place.num_bytes, place.offset)
        try:
            return read(data, response)
        except DamagedRecord as damage:
            raise DamagedStore(f"{self._path(place.file)}, byte {place.offset}: {damage}") from damage

    def _open_file(self, number: int) -> None:
        self._descriptors[number] = os.open(self._path(number), os.O_RDONLY)

    def _path(self, number: int) -> Path:
        return payload_file(self.directory, number)


def _shorten(segment: Segment, num_tokens: int) -> Segment:
    if num_tokens == len(segment.tokens):
        return segment
    full, routing = segment.behaviour_logprobs, segment.routing
    return replace(
        segment,
        tokens=segment.tokens[:num_tokens],
        logprobs=segment.logprobs[:num_tokens],
        behaviour_logprobs=None if full is None else full[:num_tokens],
        mask=segment.mask[:num_tokens],
        routing=None if routing is None else routing[:num_tokens],
    )
