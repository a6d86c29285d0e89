"""The row and length class of every running sequence. No tensors.

A class is a block of rows of the same capacity. Promises:

* a slot owns exactly one row, in the smallest class that holds its length;
* ``used_tokens`` is the sum of the capacities of the owned rows;
* after ``compact`` the owned rows of a class are 0 .. n-1, so that attention runs over a plain slice;
* every ``RowMove`` names rows as they are when it is carried out, in the order in which moves are returned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    length_class: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMove:
    """A sequence moves from row ``source`` to row ``target``; its KV must be copied."""

    slot: int
    source: Row
    target: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTransfer:
    """Copy the first ``count`` positions of one row's KV to another row. In a pool of pages a row is a page."""

    source: Row
    target: Row
    count: int


class KvTable(Protocol):
    """What the batcher asks of a table of rows or of pages."""

    @property
    def used_tokens(self) -> int: ...
    @property
    def extents(self) -> list[int]: ...
    def charge(self, length: int, num_shared: int = 0) -> int: ...
    def capacity(self, slot: int) -> int: ...
    def place(self, slot: int, length: int, *, leader: int | None = None, num_shared: int = 0) -> object: ...
    def remove(self, slot: int) -> None: ...
    def grow(self, slot: int, length: int) -> list[RowMove]: ...
    def compact(self) -> list[RowMove]: ...
    def copy_prompt(self, leader: int, slot: int, num_shared: int) -> RowTransfer | None: ...


class RowTable:
    def __init__(self, capacities: Sequence[int]) -> None:
        self.capacities = tuple(capacities)
        self._used_tokens = 0
        self._owners: list[list[int | None]] = [[] for _ in self.capacities]
        self._holes: list[list[int]] = [[] for _ in self.capacities]
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def used_tokens(self) -> int:
        return self._used_tokens

    def class_for(self, length: int) -> int:
        """The smallest class that holds ``length`` tokens."""
        index = bisect_left(self.capacities, length)
        if index == len(self.capacities):
            raise ValueError(f"no length class holds {length} tokens; the largest is {self.capacities[-1]}")
        return index

    def charge(self, length: int, num_shared: int = 0) -> int:
        """Tokens of the KV budget that a sequence of this length takes. Rows share nothing."""
        return self.capacities[self.class_for(length)]

    def row(self, slot: int) -> Row:
        return self._rows[slot]

    def capacity(self, slot: int) -> int:
        return self.capacities[self._rows[slot].length_class]

    def owners(self, length_class: int) -> list[int]:
        """The slots of a compact class, in row order."""
        owners = [slot for slot in self._owners[length_class] if slot is not None]
        assert len(owners) == len(self._owners[length_class]), "compact before asking"
        return owners

    @property
    def extents(self) -> list[int]:
        """Per class, the number of rows up to the last owned one, holes included."""
        return [len(owners) for owners in self._owners]

    def place(self, slot: int, length: int, *, leader: int | None = None, num_shared: int = 0) -> Row:
        """Give a slot a row. A prompt that it shares with ``leader`` is copied later (``copy_prompt``)."""
        if slot in self._rows:
            raise ValueError(f"slot {slot} already owns {self._rows[slot]}")
        length_class = self.class_for(length)
        owners, holes = self._owners[length_class], self._holes[length_class]
        if holes:
            index = heappop(holes)
            owners[index] = slot
        else:
            index = len(owners)
            owners.append(slot)
        self._rows[slot] = Row(length_class, index)
        self._used_tokens += self.capacities[length_class]
        return self._rows[slot]

    def remove(self, slot: int) -> None:
        length_class, index = self._rows.pop(slot)
        self._owners[length_class][index] = None
        heappush(self._holes[length_class], index)
        self._used_tokens -= self.capacities[length_class]

    def grow(self, slot: int, length: int) -> list[RowMove]:
        """Move a sequence that has outgrown its class."""
        source = self._rows[slot]
        self.remove(slot)
        return [RowMove(slot=slot, source=source, target=self.place(slot, length))]

    def copy_prompt(self, leader: int, slot: int, num_shared: int) -> RowTransfer | None:
        """The copy of a prompt that two sequences share."""
        return RowTransfer(source=self.row(leader), target=self.row(slot), count=num_shared)

    def compact(self) -> list[RowMove]:
        """Fill every hole with the last row of its class."""
        moves: list[RowMove] = []
        for length_class, holes in enumerate(self._holes):
            if holes:
                moves += self._compact_class(length_class)
        return moves

    def _compact_class(self, length_class: int) -> list[RowMove]:
        owners, holes = self._owners[length_class], self._holes[length_class]
        moves: list[RowMove] = []
        for hole in sorted(holes):
            while owners and owners[-1] is None:
                owners.pop()
            if hole >= len(owners):
                break
            slot = owners.pop()
            assert slot is not None
            owners[hole] = slot
            source, target = Row(length_class, len(owners)), Row(length_class, hole)
            self._rows[slot] = target
            moves.append(RowMove(slot=slot, source=source, target=target))
        holes.clear()
        return moves

    def check(self) -> None:
        """Assert every promise that must hold between two calls."""
        owned = [
            (slot, Row(length_class, index))
            for length_class, owners in enumerate(self._owners)
            for index, slot in enumerate(owners)
            if slot is not None
        ]
        assert dict(owned) == self._rows
        assert len(owned) == len(self._rows)
        assert self.used_tokens == sum(self.capacities[row.length_class] for row in self._rows.values())
        for owners, holes in zip(self._owners, self._holes, strict=True):
            assert sorted(holes) == [index for index, slot in enumerate(owners) if slot is None]
