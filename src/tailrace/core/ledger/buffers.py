"""Admission `deadline`: one buffer per future batch. Every live group is in one of them.

Buffer ``v`` is the batch that trains version ``v``. It accepts groups of version ``v - max_staleness`` or newer and
holds at most ``capacity`` groups. Unfinished groups (reservations) are in the latest buffer that accepts them, finished
groups in the earliest. Three invariants hold between two operations:

1. No reservation can move to a later buffer with a free slot.
2. No finished group is in a later buffer than a free slot.
3. No reservation can change places with a finished group of a later buffer.

It follows that the first buffer holds a batch of finished groups whenever some arrangement of the groups would
(proof: docs/decisions/0004-ledger.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import Holding, LedgerEntry, LedgerRules


class Shelf:
    """Groups sorted by version, and within a version by arrival. Only a few versions are live at a time."""

    __slots__ = ("by_version", "size")

    def __init__(self) -> None:
        self.by_version: dict[int, dict[GroupId, LedgerEntry]] = {}
        self.size = 0

    def add(self, group: GroupId, entry: LedgerEntry) -> None:
        self.by_version.setdefault(entry.version, {})[group] = entry
        self.size += 1

    def remove(self, group: GroupId, entry: LedgerEntry) -> None:
        bucket = self.by_version[entry.version]
        del bucket[group]
        if not bucket:
            del self.by_version[entry.version]
        self.size -= 1

    def newest(self) -> int:
        return max(self.by_version)

    def oldest(self) -> int:
        return min(self.by_version)

    def first_of(self, version: int) -> Holding:
        return next(iter(self.by_version[version].items()))

    def last_of(self, version: int) -> Holding:
        return next(reversed(self.by_version[version].items()))

    def __iter__(self) -> Iterator[Holding]:
        """Return the groups, oldest version first."""
        for version in sorted(self.by_version):
            yield from self.by_version[version].items()


class Buffer:
    """The groups of one future batch: reservations and finished groups."""

    __slots__ = ("occupied", "reserved")

    def __init__(self) -> None:
        self.reserved, self.occupied = Shelf(), Shelf()

    @property
    def size(self) -> int:
        return self.reserved.size + self.occupied.size

    def shelf(self, entry: LedgerEntry) -> Shelf:
        return self.occupied if entry.is_occupied else self.reserved


class Buffers:
    """Assigns each group in ``entries``, a dict shared with the ledger, to a buffer.

    The dict is kept in the order in which groups were placed. So buffers that are rebuilt from a stored dict make the
    same decisions as the original ones.
    """

    def __init__(
        self, entries: dict[GroupId, LedgerEntry], rules: LedgerRules, max_staleness: int, *, first: int
    ) -> None:
        self.entries, self.rules, self.first = entries, rules, first
        self.capacity, self.max_staleness = rules.capacity, max_staleness
        self.line = [Buffer() for _ in range(max_staleness + 1)]
        for group, entry in entries.items():
            if not first <= entry.slot <= entry.version + max_staleness <= first + max_staleness:
                raise CoreError(f"group {group} of version {entry.version} cannot sit in buffer {entry.slot}")
            self.line[entry.slot - first].shelf(entry).add(group, entry)

    @property
    def current(self) -> Buffer:
        return self.line[0]

    @property
    def num_occupied(self) -> int:
        return sum(buffer.occupied.size for buffer in self.line)

    @property
    def num_trainable(self) -> int:
        return self.current.occupied.size

    @property
    def is_full(self) -> bool:
        """Whether the current batch has no free slot."""
        return self.current.size >= self.capacity

    def awaited(self) -> Iterator[GroupId]:
        """Return the reservations of the current batch, oldest version first."""
        return (group for group, _ in self.current.reserved)

    def free(self) -> list[int]:
        """Return the number of free slots of each buffer."""
        return [self.capacity - buffer.size for buffer in self.line]

    def has_room(self, version: int) -> bool:
        return self._latest_free(version) is not None

    def add(self, group: GroupId, entry: LedgerEntry) -> bool:
        """Put the group in the latest free slot that accepts it; return False if there is none."""
        slot = self._latest_free(entry.version)
        if slot is not None:
            self._put(group, entry, slot)
        return slot is not None

    def finish(self, group: GroupId, entry: LedgerEntry, version: int) -> None:
        """Release the reserved slot, so that earlier reservations can move there; then take the earliest free slot."""
        self._take(group, entry)
        self._close(entry.slot)
        entry.version, entry.is_occupied = version, True
        slot = self._earliest_free()
        if slot is None or slot > version + self.max_staleness:
            raise CoreError(f"no slot for the finished group {group} of version {version}")
        self._put(group, entry, slot)

    def remove(self, group: GroupId, entry: LedgerEntry) -> None:
        """Remove a group. Reservations move into its slot first; then the last finished group moves forward."""
        self._take(group, entry)
        del self.entries[group]
        hole = self._close(entry.slot)
        for slot in range(self.first + self.max_staleness, hole, -1):
            occupied = self.line[slot - self.first].occupied
            if occupied.size:
                self._move(occupied.first_of(occupied.oldest()), hole)
                return

    def trainable(self) -> Iterator[GroupId]:
        """Return the finished groups of the current batch, oldest version first."""
        return (group for group, _ in self.current.occupied)

    def consume(self, count: int, first: Collection[GroupId] = ()) -> tuple[list[Holding], list[GroupId]]:
        """Remove the first buffer. Return the ``count`` groups to train, those in ``first`` before others and then
        oldest versions first, and the expired groups.

        All its reservations expire: by invariant 1, none of them fits into a later buffer.
        """
        buffer = self.line.pop(0)
        self.line.append(Buffer())
        self.first += 1
        finished, expired = (
            sorted(buffer.occupied, key=lambda holding: holding[0] not in first),
            [group for group, _ in buffer.reserved],
        )
        batch, surplus = finished[:count], finished[count:]
        for holding in surplus:
            expired += self._settle(holding)
        for group in expired:
            del self.entries[group]
        for group, _ in batch:
            del self.entries[group]
        return batch, expired

    def _settle(self, holding: Holding) -> list[GroupId]:
        """Place a finished group whose buffer was removed. Return the groups that expire because of it, if any."""
        group, entry = holding
        deadline = entry.version + self.max_staleness
        if deadline < self.first:
            return [group]
        slot = self._earliest_free()
        if slot is not None and slot <= deadline:
            self._put(group, entry, slot)
            return []
        within = self.line[: deadline - self.first + 1]
        rival = _newest(buffer.occupied for buffer in within)
        if rival is not None and rival[1].version > entry.version:  # the rival may be trained later: change places
            self._take(*rival)
            self._put(group, entry, rival[1].slot)
            return self._settle(rival)
        victim = _newest(buffer.reserved for buffer in within)
        if victim is None:
            return [group]
        self._take(*victim)
        self._put(group, entry, self._close(victim[1].slot))
        return [victim[0]]

    def _close(self, hole: int) -> int:
        """Fill a free slot with the earliest reservation that the buffer accepts, then the slot it came from, and so
        on. Return the buffer of the last free slot."""
        slot = self.first
        while slot < hole:
            reserved = self.line[slot - self.first].reserved
            if reserved.size and reserved.newest() + self.max_staleness >= hole:
                self._move(reserved.first_of(reserved.newest()), hole)
                slot, hole = self.first, slot
            else:
                slot += 1
        return hole

    def _latest_free(self, version: int) -> int | None:
        for slot in range(version + self.max_staleness, self.first - 1, -1):
            if self.line[slot - self.first].size < self.capacity:
                return slot
        return None

    def _earliest_free(self) -> int | None:
        for slot, buffer in enumerate(self.line, self.first):
            if buffer.size < self.capacity:
                return slot
        return None

    def _take(self, group: GroupId, entry: LedgerEntry) -> None:
        self.line[entry.slot - self.first].shelf(entry).remove(group, entry)

    def _put(self, group: GroupId, entry: LedgerEntry, slot: int) -> None:
        entry.slot = slot
        self.line[slot - self.first].shelf(entry).add(group, entry)
        self.entries.pop(group, None)
        self.entries[group] = entry

    def _move(self, holding: Holding, slot: int) -> None:
        self._take(*holding)
        self._put(*holding, slot)

    def check(self) -> None:
        """Raise CoreError if a group is in the wrong buffer, a buffer is overfull or an invariant is broken."""
        rebuilt = Buffers(self.entries, self.rules, self.max_staleness, first=self.first)
        for buffer, expected in zip(self.line, rebuilt.line, strict=True):
            if list(buffer.reserved) != list(expected.reserved) or list(buffer.occupied) != list(expected.occupied):
                raise CoreError("a buffer does not hold the groups that say they are in it, in their order")
        if min(self.free()) < 0:
            raise CoreError(f"an overfull buffer: {self.free()}")
        for slot, buffer in enumerate(self.line, self.first):
            earlier = self.line[: slot - self.first]
            may_wait = any(b.reserved.size and b.reserved.newest() + self.max_staleness >= slot for b in earlier)
            if may_wait and buffer.reserved.size < self.capacity:
                raise CoreError(f"a reservation before buffer {slot} could move there or change places with one there")
            if buffer.occupied.size and any(b.size < self.capacity for b in earlier):
                raise CoreError(f"a finished group sits in buffer {slot} behind a free slot")


def _newest(shelves: Iterable[Shelf]) -> Holding | None:
    """Return a group of the newest version: the one that arrived last."""
    best: Shelf | None = None
    for shelf in shelves:
        if shelf.size and (best is None or shelf.newest() >= best.newest()):
            best = shelf
    return best.last_of(best.newest()) if best is not None else None
