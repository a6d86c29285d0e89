"""Admission `count`, or no bound: the groups that finish first are trained first, however stale they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import Holding, LedgerEntry, LedgerRules


class Pool:
    """The live groups, and which of them are finished, in the order in which they finished."""

    def __init__(self, entries: dict[GroupId, LedgerEntry], rules: LedgerRules) -> None:
        self.entries, self.max_entries = entries, rules.max_entries
        self.occupied = {group: entry for group, entry in entries.items() if entry.is_occupied}

    @property
    def num_occupied(self) -> int:
        return len(self.occupied)

    @property
    def num_trainable(self) -> int:
        return len(self.occupied)

    @property
    def is_full(self) -> bool:
        """Whether no further group is admitted."""
        return len(self.entries) == self.max_entries

    def awaited(self) -> Iterator[GroupId]:
        """Return nothing: a batch takes the groups that finish first, so it waits for none in particular."""
        return iter(())

    def free(self) -> list[int] | None:
        return None if self.max_entries is None else [self.max_entries - len(self.entries)]

    def has_room(self, version: int) -> bool:
        return self.max_entries is None or len(self.entries) < self.max_entries

    def add(self, group: GroupId, entry: LedgerEntry) -> bool:
        has_room = self.has_room(entry.version)
        if has_room:
            self.entries[group] = entry
        return has_room

    def finish(self, group: GroupId, entry: LedgerEntry, version: int) -> None:
        entry.version, entry.is_occupied = version, True
        del self.entries[group]
        self.entries[group] = self.occupied[group] = entry

    def remove(self, group: GroupId, entry: LedgerEntry) -> None:
        del self.entries[group]
        self.occupied.pop(group, None)

    def trainable(self) -> Iterator[GroupId]:
        """Return the finished groups, in the order in which they finished."""
        return iter(self.occupied)

    def consume(self, count: int, first: Collection[GroupId] = ()) -> tuple[list[Holding], list[GroupId]]:
        """Take those in ``first``, then those that finished before others."""
        others = (holding for holding in self.occupied.items() if holding[0] not in first)
        batch = [*((group, self.occupied[group]) for group in first), *islice(others, count - len(first))]
        for group, entry in batch:
            self.remove(group, entry)
        return batch, []

    def check(self) -> None:
        if list(self.occupied) != [group for group, entry in self.entries.items() if entry.is_occupied]:
            raise CoreError("the finished groups are not those that say so, in their order")
        if self.max_entries is not None and len(self.entries) > self.max_entries:
            raise CoreError(f"{len(self.entries)} live groups, more than {self.max_entries}")
