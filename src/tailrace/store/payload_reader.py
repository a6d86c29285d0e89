"""A payload store as a reader sees it: nothing here writes, repairs or takes the writer's lock.

What is damaged at the end of the last file is not there for a reader (its writer may be at work); damage in an earlier
file is `DamagedStore`, naming file and offset. Every read verifies the checksum again. The index in memory holds
places, never arrays.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.core.ids import TrajectoryId
from tailrace.store.record import DamagedRecord, Record, RecordHeader, decode
from tailrace.store.segment import Response, Segment, join


class DamagedStore(Exception):
    """A record that was once whole cannot be read back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a segment lies, and how many of its tokens still count."""

    file: int
    offset: int
    num_bytes: int
    start: int
    num_tokens: int


class PayloadReader:
    """Owns the index of what a directory of payload files holds."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._places: dict[TrajectoryId, list[Place]] = {}
        self._descriptors: dict[int, int] = {}

    @classmethod
    def open(cls, directory: Path | str) -> Self:
        """The store as it is now; what is appended later is not seen."""
        reader = cls(Path(directory))
        try:
            reader._scan()
        except BaseException:  # whatever went wrong, what did not open must not keep files open
            reader.close()
            raise
        return reader

    def length(self, trajectory: TrajectoryId) -> int:
        """Tokens held of this response; 0 for an unknown one."""
        places = self._places.get(trajectory)
        return places[-1].start + places[-1].num_tokens if places else 0

    def held(self) -> tuple[TrajectoryId, ...]:
        """Every response of which something is held, in order of its first segment."""
        return tuple(self._places)

    def response(self, trajectory: TrajectoryId) -> Response:
        places = self._places.get(trajectory)
        if places is None:
            raise LookupError(f"the payload store {self.directory} holds nothing of {trajectory}")
        return join(trajectory, [self._read(place) for place in places])

    def close(self) -> None:
        """Release the files. What is closed takes no more calls."""
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
        """Index a file; the bytes of it that are whole, and all of them."""
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
        if header.start > self.length(header.trajectory):
            # What lay between was compacted away: either the response was forgotten, or this record was replaced
            # by a later one that starts further left and follows in the scan.
            return
        place = Place(file=number, offset=offset, num_bytes=num_bytes, start=header.start, num_tokens=header.num_tokens)
        self._place(header.trajectory, place)

    def _place(self, trajectory: TrajectoryId, place: Place) -> None:
        places = self._places.setdefault(trajectory, [])
        while places and places[-1].start >= place.start:
            places.pop()
        if places and places[-1].start + places[-1].num_tokens > place.start:
            places[-1] = replace(places[-1], num_tokens=place.start - places[-1].start)
        places.append(place)

    def _read(self, place: Place) -> Segment:
        """What of the segment still counts."""
        return _shorten(self._segment(place), place.num_tokens)

    def _segment(self, place: Place) -> Segment:
        data = os.pread(self._descriptors[place.file], place.num_bytes, place.offset)
        try:
            record: Record = decode(memoryview(data))
        except DamagedRecord as damage:
            raise DamagedStore(f"{self._path(place.file)}, byte {place.offset}: {damage}") from damage
        return record.segment()

    def _open_file(self, number: int) -> None:
        self._descriptors[number] = os.open(self._path(number), os.O_RDONLY)

    def _path(self, number: int) -> Path:
        return self.directory / f"payload-{number:06d}.bin"


def _shorten(segment: Segment, num_tokens: int) -> Segment:
    if num_tokens == len(segment.tokens):
        return segment
    full = segment.full_logprobs
    return replace(
        segment,
        tokens=segment.tokens[:num_tokens],
        logprobs=segment.logprobs[:num_tokens],
        full_logprobs=None if full is None else full[:num_tokens],
        mask=segment.mask[:num_tokens],
    )
