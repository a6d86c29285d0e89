"""How the ledger admits groups: its rules, what it notes of a group, and a light copy to plan with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId


class Admission(Enum):
    DEADLINE = "deadline"
    """By slots: no group is ever trained above the bound, and a batch is whatever is finished in time."""
    ORDER = "order"
    """In the order of admission: no group is ever trained above the bound, and a batch waits for its own groups."""
    COUNT = "count"
    """At most (max_staleness + 1) * capacity live groups; one slow group may still exceed the bound."""
    UNBOUNDED = "unbounded"

    @property
    def is_strict(self) -> bool:
        return self in (Admission.DEADLINE, Admission.ORDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRules:
    batch_size: int
    """Groups per training step."""
    max_staleness: int
    admission: Admission
    capacity: int
    """Groups that may be in flight per batch to come."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.max_staleness < 0 or self.capacity < self.batch_size:
            raise ValueError(f"needs batch_size >= 1, max_staleness >= 0, capacity >= batch_size, not {self}")
        if self.admission is Admission.ORDER and self.capacity != self.batch_size:
            raise ValueError(f"groups in order are all trained, so none can be redundant: {self}")

    @property
    def max_entries(self) -> int | None:
        return None if self.admission is Admission.UNBOUNDED else (self.max_staleness + 1) * self.capacity


@dataclass(slots=True)
class LedgerEntry:
    """What the ledger knows of one live group."""

    version: int
    """The oldest version that may have produced any of its tokens."""
    is_occupied: bool = False
    """Finished and rewarded; a reservation until then."""
    slot: int = 0
    """The buffer it sits in; of no meaning without deadlines."""


Holding = tuple[GroupId, LedgerEntry]


@dataclass(slots=True)
class Overlay:
    """Free slots alone: enough to ask for many admissions in a row, each after the ones before it."""

    rules: LedgerRules
    current: int
    free: list[int] | None
    """Per buffer; one number without deadlines; None without a bound."""

    def copy(self) -> Overlay:
        return Overlay(self.rules, self.current, None if self.free is None else list(self.free))

    def can_reserve(self, version: int) -> bool:
        return self.free is None or self._place(version, self.free) is not None

    def reserve(self, version: int) -> None:
        if self.free is None:
            return
        index = self._place(version, self.free)
        if index is None:
            raise CoreError(f"no room for a group of version {version} while batch {self.current} is collected")
        self.free[index] -= 1

    def _place(self, version: int, free: list[int]) -> int | None:
        """The batch to come it would be admitted to: in order the earliest with room, by deadline the latest."""
        last = version + self.rules.max_staleness - self.current if self.rules.admission.is_strict else 0
        for index in range(last + 1) if self.rules.admission is Admission.ORDER else range(last, -1, -1):
            if free[index]:
                return index
        return None
