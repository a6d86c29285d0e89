"""Admission `order`: groups are trained in the order in which they were admitted. Each batch waits for its own groups.

Group ``n`` of the line is trained in batch ``n // batch_size`` from now, whichever group finishes first. So the bound
follows from the length of the line. Systems that cap the responses in flight and fix a group's batch when it starts
work this way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice, takewhile

from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import Holding, LedgerEntry, LedgerRules


class InOrder:
    """The line of live groups, in the order of ``entries``, a dict shared with the ledger."""

    def __init__(
        self, entries: dict[GroupId, LedgerEntry], rules: LedgerRules, max_staleness: int, *, first: int
    ) -> None:
        self.entries, self.rules, self.max_staleness, self.first = entries, rules, max_staleness, first
        self.num_occupied = sum(entry.is_occupied for entry in entries.values())
        self._check_places()

    @property
    def num_trainable(self) -> int:
        return sum(1 for _ in self.trainable())

    def trainable(self) -> Iterator[GroupId]:
        """Return the finished groups at the head of the line, as many as a batch takes."""
        head = islice(self.entries.items(), self.rules.batch_size)
        return (group for group, _ in takewhile(lambda holding: holding[1].is_occupied, head))

    @property
    def is_full(self) -> bool:
        """Whether the current batch has all its groups."""
        return len(self.entries) >= self.rules.batch_size

    def awaited(self) -> Iterator[GroupId]:
        """Return the unfinished groups of the current batch, in order."""
        head = islice(self.entries.items(), self.rules.batch_size)
        return (group for group, entry in head if not entry.is_occupied)

    def free(self) -> list[int]:
        """Return the number of free places in each future batch."""
        size, num_entries = self.rules.batch_size, len(self.entries)
        return [min(size, max(0, (n + 1) * size - num_entries)) for n in range(self.max_staleness + 1)]

    def has_room(self, version: int) -> bool:
        batch = self.first + len(self.entries) // self.rules.batch_size
        return batch <= version + self.max_staleness

    def add(self, group: GroupId, entry: LedgerEntry) -> bool:
        has_room = self.has_room(entry.version)
        if has_room:
            self.entries[group] = entry
        return has_room

    def finish(self, group: GroupId, entry: LedgerEntry, version: int) -> None:
        entry.version, entry.is_occupied = version, True
        self.num_occupied += 1

    def remove(self, group: GroupId, entry: LedgerEntry) -> None:
        del self.entries[group]
        self.num_occupied -= entry.is_occupied

    def consume(self, count: int, first: Collection[GroupId] = ()) -> tuple[list[Holding], list[GroupId]]:
        """Take the head of the line, where those in ``first`` are too."""
        batch = list(islice(self.entries.items(), count))
        for group, entry in batch:
            self.remove(group, entry)
        self.first += 1
        return batch, []

    def check(self) -> None:
        self._check_places()
        if self.num_occupied != sum(entry.is_occupied for entry in self.entries.values()):
            raise CoreError(f"{self.num_occupied} finished groups are counted, not those that say so")

    def _check_places(self) -> None:
        for position, (group, entry) in enumerate(self.entries.items()):
            if self.first + position // self.rules.batch_size > entry.version + self.max_staleness:
                raise CoreError(f"group {group} of version {entry.version} stands too far back, at {position}")
