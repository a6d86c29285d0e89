"""Admission to the ledger: its rules, its entry for a group, and a light copy for trying out reservations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tailrace.core.errors import CoreError
from tailrace.core.ids import GroupId

NO_BOUND_BEFORE = "unbounded"
"""A way of admission in the journals and checkpoints of older releases, which now is the bound None."""


class AdmissionRule(Enum):
    """How the ledger enforces the bound when a group wants to start. Live groups are admitted and not trained.

    Without a bound every group may start.
    """

    DEADLINE = "deadline"
    """Each group has a slot in a batch that it can reach within the bound, so no group is trained above the bound. A
    batch takes the groups that finish first."""
    ORDER = "order"
    """Groups are trained in the order in which they started, so no group is trained above the bound. A batch waits for
    its own groups."""
    COUNT = "count"
    """At most (max_staleness + 1) * capacity groups are live. A slow group may still be trained above the bound."""

    @property
    def is_strict(self) -> bool:
        """Whether no group is ever trained above the bound."""
        return self in (AdmissionRule.DEADLINE, AdmissionRule.ORDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRules:
    """Settings of a ledger."""

    batch_size: int
    """Groups per optimizer step."""
    max_staleness: int | None
    """The bound: the trained version minus the version of a group's oldest token. None: no bound."""
    admission: AdmissionRule
    """How the bound is enforced; without effect where there is none."""
    capacity: int
    """Most groups, finished or not, that one future batch holds. Above ``batch_size`` some of them are redundant."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or (self.max_staleness or 0) < 0 or self.capacity < self.batch_size:
            raise ValueError(f"batch_size must be >= 1, max_staleness >= 0 and capacity >= batch_size, got {self}")
        if self.is_strict and self.admission is AdmissionRule.ORDER and self.capacity != self.batch_size:
            raise ValueError(f"admission 'order' trains every group, so capacity must equal batch_size, got {self}")

    @property
    def max_entries(self) -> int | None:
        """Most live groups; None: no limit."""
        return None if self.max_staleness is None else (self.max_staleness + 1) * self.capacity

    @property
    def is_strict(self) -> bool:
        """Whether no group is ever trained above the bound."""
        return self.max_staleness is not None and self.admission.is_strict

    @staticmethod
    def upgraded(stored: dict[str, object]) -> dict[str, object]:
        """Return the stored fields with the values of this release."""
        if stored.get("admission") != NO_BOUND_BEFORE:
            return stored
        return {**stored, "admission": AdmissionRule.DEADLINE.value, "max_staleness": None}


@dataclass(slots=True)
class LedgerEntry:
    """The ledger's record of one live group."""

    version: int
    """Oldest version that may have generated any of its tokens."""
    is_occupied: bool = False
    """True: the group is finished and scored. False: it is a reservation."""
    slot: int = 0
    """Number of the buffer that holds it. Used with admission `deadline` only."""


Holding = tuple[GroupId, LedgerEntry]
"""A group with its record."""


@dataclass(slots=True)
class Overlay:
    """The free slots of a ledger. A policy reserves slots in a copy to find out which of its routes are admitted."""

    rules: LedgerRules
    current: int
    """Version whose batch is collected."""
    free: list[int] | None
    """Free slots of each future batch, the current one first; one number for admission `count`; None: no limit."""

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
        """Return the index of the batch that would admit it; None if none does. `order` takes the earliest batch with
        room, `deadline` the latest."""
        bound = self.rules.max_staleness
        last = version + bound - self.current if bound is not None and self.rules.admission.is_strict else 0
        for index in range(last + 1) if self.rules.admission is AdmissionRule.ORDER else range(last, -1, -1):
            if free[index]:
                return index
        return None
