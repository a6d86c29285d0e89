"""Tokens, log-probs, versions and masks of every response, finished or not, on disk.

* Append-only: one `append` is one write() handed to the operating system, so what was appended survives the
  death of this process at any moment. `sync` makes it survive the machine too; rotation syncs the file it closes.
* A store cut at any byte opens and loses only the record that was cut: the damaged end of the last file is removed
  and counted in `repaired_bytes`. Damage in an earlier file is `DamagedStore`, naming file and offset.
* A segment must start within or directly behind what is held. Where it starts inside, it replaces the tail: the
  last writer wins and everything before `start` never changes (tokens lost by a crash are generated again).
* Any thread may call it: a lock makes one call follow the other. Only `sync` lets others go on meanwhile.
* One writer: a second process (or a second opening) is refused while the first one is alive.
* Every read of a file verifies the checksum again. The index in memory holds places, never arrays; what was appended
  last, up to `recent_bytes`, is held as well and answered without a read.

Files are named `payload-000001.bin`, `payload-000002.bin`, ... `release` says that a response is no longer needed.
`compact` deletes every closed file that holds no needed response. Releases are not written to disk: after the store is
opened again, responses whose files still exist are held again.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tailrace.core.ids import ResponseId
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.place import StoredPlace
from tailrace.store.recent import RecentSegments
from tailrace.store.record import encode
from tailrace.store.segment import ResponsePayload, Segment

DEFAULT_FILE_BYTES = 64 * 1024 * 1024
DEFAULT_RECENT_BYTES = 32 * 1024 * 1024
LOCK_NAME = "payload.lock"


class StoreInUse(Exception):
    """The store is already open, in this process or in another."""


class PayloadStore(PayloadReader):
    """The one writer of a directory of payload files, and a reader of them."""

    def __init__(self, directory: Path, *, file_bytes: int, recent_bytes: int) -> None:
        if file_bytes < 1:
            raise ValueError(f"file_bytes must be at least 1, got {file_bytes}")
        super().__init__(directory)
        self.repaired_bytes = 0
        self._current, self._size = 0, 0
        self._file_bytes = file_bytes
        self._recent = RecentSegments(recent_bytes)
        self._access = threading.RLock()
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _take_lock(directory / LOCK_NAME)

    @classmethod
    def open(
        cls,
        directory: Path | str,
        *,
        file_bytes: int = DEFAULT_FILE_BYTES,
        recent_bytes: int = DEFAULT_RECENT_BYTES,
    ) -> Self:
        """Open or create the store in `directory`, repairing a torn end."""
        store = cls(Path(directory), file_bytes=file_bytes, recent_bytes=recent_bytes)
        try:
            store._scan()
        except BaseException:  # whatever went wrong, a store that did not open must not stay locked
            store.close()
            raise
        return store

    def append(self, segments: Iterable[Segment]) -> None:
        """Write all of `segments` or, if this raises, none of them."""
        segments = list(segments)
        if not segments:
            return
        records = [encode(segment) for segment in segments]
        with self._access:
            self._check_starts(segments)
            self._append(segments, records)

    def _append(self, segments: list[Segment], records: list[bytes]) -> None:
        num_bytes = sum(map(len, records))
        if self._size and self._size + num_bytes > self._file_bytes:
            self._rotate()
        self._write(b"".join(records))
        file, offset = self._current, self._size
        for segment, record in zip(segments, records, strict=True):
            place = StoredPlace(file, offset, len(record), segment.start, len(segment.tokens))
            self._place(segment.response_id, place)
            self._recent.add((file, offset), segment, len(record))
            offset += len(record)
        self._size = offset

    def length(self, response: ResponseId) -> int:
        with self._access:
            return super().length(response)

    def held(self) -> tuple[ResponseId, ...]:
        with self._access:
            return super().held()

    def response(self, response: ResponseId) -> ResponsePayload:
        with self._access:
            return super().response(response)

    def release(self, responses: Iterable[ResponseId]) -> None:
        with self._access:
            for response in responses:
                self._places.pop(response, None)

    def compact(self) -> int:
        """Delete closed files that hold no needed response; return how many."""
        with self._access:
            needed = {place.file for places in self._places.values() for place in places}
            unneeded = [number for number in self._descriptors if number not in needed and number != self._current]
            closed = [self._descriptors.pop(number) for number in unneeded]
        for number, descriptor in zip(unneeded, closed, strict=True):
            os.close(descriptor)
            self._path(number).unlink()
        return len(unneeded)

    def sync(self) -> None:
        """Everything appended so far survives a loss of power."""
        with self._access:  # a descriptor of our own: the file may be closed meanwhile
            descriptor = os.dup(self._descriptors[self._current])
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Release the files and the lock. A closed store takes no more calls."""
        super().close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _scan(self) -> None:
        super()._scan()
        if not self._descriptors:
            self._open_file(1)

    def _scan_file(self, number: int, *, is_last: bool) -> tuple[int, int]:
        whole, size = super()._scan_file(number, is_last=is_last)
        if whole < size:
            os.ftruncate(self._descriptors[number], whole)
            self.repaired_bytes += size - whole
        self._size = whole
        return whole, size

    def _check_starts(self, segments: list[Segment]) -> None:
        lengths: dict[ResponseId, int] = {}
        for segment in segments:
            response, start = segment.response_id, segment.start
            length = lengths.get(response)
            if length is None:
                length = super().length(response)  # the lock is taken already
            if not 0 <= start <= length:
                raise ValueError(f"{response}: a segment starts at {start}, {length} tokens are held")
            lengths[response] = start + len(segment.tokens)

    def _segment(self, response: ResponseId, place: StoredPlace) -> Segment:
        return self._recent.get((place.file, place.offset)) or super()._segment(response, place)

    def _write(self, data: bytes) -> None:
        descriptor, rest = self._descriptors[self._current], memoryview(data)
        try:
            while rest:  # a write() is only ever short where the disk fills up or a signal arrives
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, self._size)
            raise

    def _rotate(self) -> None:
        self.sync()
        self._open_file(self._current + 1)

    def _open_file(self, number: int) -> None:
        self._descriptors[number] = os.open(self._path(number), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._current, self._size = number, 0
        _sync_directory(self.directory)


def _take_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreInUse(f"another process is writing into the payload store {path.parent}") from None
    return descriptor


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
