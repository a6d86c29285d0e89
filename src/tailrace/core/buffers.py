"""Where the strict bound is kept: one buffer per batch to come, and every live group in one of them.

Buffer ``v`` is the batch that trains version ``v``; it takes groups of version ``v - max_staleness`` or newer and holds
at most ``capacity``. Unfinished groups (reservations) sit as late as they may, finished ones (occupied) as early as
they can. Between two operations:

1. no reservation may move to a later buffer that has a free slot;
2. no finished group sits behind a free slot;
3. no reservation may change places with a finished group of a later buffer.

Therefore the first buffer holds a batch of finished groups whenever any arrangement of the groups would
(docs/decisions/0004-ledger.md has the argument).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core.admission import Holding, LedgerEntry, LedgerRules
from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId


class Shelf:
    """Groups by version, and within one version in the order they came. Few versions are live at a time."""

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
        """The oldest version first."""
        for version in sorted(self.by_version):
            yield from self.by_version[version].items()


class Buffer:
    __slots__ = ("occupied", "reserved")

    def __init__(self) -> None:
        self.reserved, self.occupied = Shelf(), Shelf()

    @property
    def size(self) -> int:
        return self.reserved.size + self.occupied.size

    def shelf(self, entry: LedgerEntry) -> Shelf:
        return self.occupied if entry.is_occupied else self.reserved


class Buffers:
    """Arranges ``entries``, a dict it shares with the ledger. The dict is kept in the order of placement, so that
    buffers built from a stored dict make the same choices as those that were stored."""

    def __init__(self, entries: dict[GroupId, LedgerEntry], rules: LedgerRules, *, first: int) -> None:
        self.entries, self.rules, self.first = entries, rules, first
        self.capacity, self.max_staleness = rules.capacity, rules.max_staleness
        self.line = [Buffer() for _ in range(rules.max_staleness + 1)]
        for group, entry in entries.items():
            if not first <= entry.slot <= entry.version + rules.max_staleness <= first + rules.max_staleness:
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
        """Whether the batch that is collected has no free slot."""
        return self.current.size >= self.capacity

    def awaited(self) -> Iterator[GroupId]:
        """The reservations of the batch that is collected, the oldest version first."""
        return (group for group, _ in self.current.reserved)

    def free(self) -> list[int]:
        """Free slots of each buffer."""
        return [self.capacity - buffer.size for buffer in self.line]

    def has_room(self, version: int) -> bool:
        return self._latest_free(version) is not None

    def add(self, group: GroupId, entry: LedgerEntry) -> bool:
        """Reserve the latest free slot; False if there is none."""
        slot = self._latest_free(entry.version)
        if slot is None:
            return False
        self._put(group, entry, slot)
        return True

    def finish(self, group: GroupId, entry: LedgerEntry, version: int) -> None:
        """Give up the reserved slot to the reservations before it, then take the earliest free one."""
        self._take(group, entry)
        self._close(entry.slot)
        entry.version, entry.is_occupied = version, True
        slot = self._earliest_free()
        if slot is None or slot > version + self.max_staleness:
            raise CoreError(f"no slot for the finished group {group} of version {version}")
        self._put(group, entry, slot)

    def remove(self, group: GroupId, entry: LedgerEntry) -> None:
        """Take a group out: reservations move into the hole first, then the last finished group comes forward."""
        self._take(group, entry)
        del self.entries[group]
        hole = self._close(entry.slot)
        for slot in range(self.first + self.max_staleness, hole, -1):
            occupied = self.line[slot - self.first].occupied
            if occupied.size:
                self._move(occupied.first_of(occupied.oldest()), hole)
                return

    def consume(self, count: int) -> tuple[list[Holding], list[GroupId]]:
        """The finished groups of the first buffer that are trained, the oldest versions first, and the groups that have
        no place any more. Its reservations have none: if one could have moved later, it would sit there already."""
        buffer = self.line.pop(0)
        self.line.append(Buffer())
        self.first += 1
        finished, expired = list(buffer.occupied), [group for group, _ in buffer.reserved]
        batch, surplus = finished[:count], finished[count:]
        for holding in surplus:
            expired += self._settle(holding)
        for group in expired:
            del self.entries[group]
        for group, _ in batch:
            del self.entries[group]
        return batch, expired

    def _settle(self, holding: Holding) -> list[GroupId]:
        """Find a place for a finished group whose buffer is gone; return who has to leave for it, if anyone must."""
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
        if rival is not None and rival[1].version > entry.version:  # it may wait longer: change places
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
        """Fill a hole with the earliest reservation that may wait there, then the hole that leaves, and so on.
        Return where the hole ends."""
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
        """Raise if a group is in the wrong place, a buffer is overfull or one of the three facts is broken."""
        rebuilt = Buffers(self.entries, self.rules, first=self.first)
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
    """A group of the newest version; of these, the one that came last."""
    best: Shelf | None = None
    for shelf in shelves:
        if shelf.size and (best is None or shelf.newest() >= best.newest()):
            best = shelf
    return best.last_of(best.newest()) if best is not None else None
