"""The ledger owns the staleness bound: every group passes it, whatever the schedule.

    reserve --> occupy --> consume         delete: from either side, an abort or a filtered group
    (first      (finished   (a batch
     member      and         begins to
     routed)     rewarded)   train)

By deadline and by order (strict) a group is admitted only if it can still be trained within the bound however long it
takes, and nothing is thrown away to keep it. By count, or without a bound, staleness above the bound is counted, not
refused.

``capacity`` above ``batch_size`` is redundancy: more reservations per batch, but a batch is ready with ``batch_size``
finished groups; what then has no place any more has expired and is for the caller to abort.

A ledger is a plain dataclass: ``codec`` stores and restores it, and a restored ledger goes on the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from tailrace.core.admission import Admission, LedgerEntry, LedgerRules, Overlay
from tailrace.core.buffers import Buffers
from tailrace.core.errors import CoreError, UnknownSubject
from tailrace.core.ids import GroupId
from tailrace.core.in_order import InOrder
from tailrace.core.pool import Pool


class BatchState(Enum):
    WAITING = "waiting"
    """There is room for more groups in the batch."""
    STUCK = "stuck"
    """There is none, and too few of its groups are finished."""
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What one ``consume`` did."""

    version: int
    """The version that is trained on the batch."""
    batch: tuple[GroupId, ...]
    """Exactly batch_size groups, in the order of their ids."""
    staleness: tuple[int, ...]
    """Of each group of the batch."""
    violations: int
    """Groups of the batch above max_staleness."""
    expired: tuple[GroupId, ...]
    """Groups that left untrained, finished or not, in the order of their ids."""


@dataclass
class Ledger:
    rules: LedgerRules
    current: int = 0
    """The version whose batch is collected. It advances when that batch begins to train."""
    entries: dict[GroupId, LedgerEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._store: Buffers | InOrder | Pool
        match self.rules.admission:
            case Admission.DEADLINE:
                self._store = Buffers(self.entries, self.rules, first=self.current)
            case Admission.ORDER:
                self._store = InOrder(self.entries, self.rules, first=self.current)
            case Admission.COUNT | Admission.UNBOUNDED:
                self._store = Pool(self.entries, self.rules)

    # Admission

    def overlay(self) -> Overlay:
        """What admission would say next, on a copy that is thrown away."""
        return Overlay(self.rules, self.current, self._store.free())

    def can_reserve(self, version: int) -> bool:
        """Whether a group whose oldest tokens come from this version would be admitted now."""
        self._check_version(version)
        return self._store.has_room(version)

    def reserve(self, group: GroupId, version: int) -> None:
        """The first member of a group goes to an instance of this version."""
        if group in self.entries:
            raise CoreError(f"group {group} is in the ledger already")
        self._check_version(version)
        if not self._store.add(group, LedgerEntry(version)):
            raise CoreError(f"no room for group {group} of version {version} while batch {self.current} is collected")

    # What becomes of a group

    def occupy(self, group: GroupId, version: int | None = None) -> None:
        """The group is finished and rewarded. ``version`` is its oldest over the members kept; it may have risen."""
        entry = self._entry(group)
        version = entry.version if version is None else version
        if entry.is_occupied:
            raise CoreError(f"group {group} is finished already")
        if version < entry.version:
            raise CoreError(f"group {group} was reserved at version {entry.version} and cannot fall to {version}")
        self._check_version(version)
        self._store.finish(group, entry, version)

    def delete(self, group: GroupId) -> None:
        """The group is aborted or filtered; whatever can use its place moves."""
        self._store.remove(group, self._entry(group))

    def consume(self, count: int | None = None) -> Consumption:
        """The batch begins to train; ``count``: a smaller one, as ``has`` says it."""
        count = self.rules.batch_size if count is None else count
        if not self.has(count):
            raise CoreError(f"batch {self.current} is {self.state.value}, not ready")
        holdings, expired = self._store.consume(count)
        trained, self.current = self.current, self.current + 1
        batch = sorted((group, trained - entry.version) for group, entry in holdings)
        violations = sum(staleness > self.rules.max_staleness for _, staleness in batch)
        if violations and self.rules.admission.is_strict:
            raise CoreError(f"{violations} groups of batch {trained} are above the bound")
        return Consumption(
            version=trained,
            batch=tuple(group for group, _ in batch),
            staleness=tuple(staleness for _, staleness in batch),
            violations=violations,
            expired=tuple(sorted(expired)),
        )

    # Questions

    @property
    def state(self) -> BatchState:
        """Of the batch that is collected."""
        if self.has(self.rules.batch_size):
            return BatchState.READY
        return BatchState.STUCK if self._store.is_full else BatchState.WAITING

    @property
    def is_ready(self) -> bool:
        return self.state is BatchState.READY

    def has(self, count: int) -> bool:
        """Whether as many finished groups may be trained now."""
        return self._store.num_trainable >= count

    def awaited(self) -> tuple[GroupId, ...]:
        """The unfinished groups of a stuck batch, without which it could be ready; none without deadlines."""
        return tuple(self._store.awaited()) if self.state is BatchState.STUCK else ()

    @property
    def num_occupied(self) -> int:
        return self._store.num_occupied

    @property
    def num_reserved(self) -> int:
        return len(self.entries) - self._store.num_occupied

    def __contains__(self, group: GroupId) -> bool:
        return group in self.entries

    def __iter__(self) -> Iterator[GroupId]:
        return iter(self.entries)

    def version_of(self, group: GroupId) -> int:
        return self._entry(group).version

    def is_reserved(self, group: GroupId) -> bool:
        return group in self.entries and not self.entries[group].is_occupied

    def is_occupied(self, group: GroupId) -> bool:
        return group in self.entries and self.entries[group].is_occupied

    def check(self) -> None:
        """Raise CoreError if an invariant is broken. Looks at everything: for tests and for restored ledgers."""
        self._store.check()
        if not isinstance(self._store, Pool) and self._store.first != self.current:
            raise CoreError(f"the first batch to come is {self._store.first}, not {self.current}")
        for entry in self.entries.values():
            self._check_version(entry.version)

    def _entry(self, group: GroupId) -> LedgerEntry:
        try:
            return self.entries[group]
        except KeyError:
            raise UnknownSubject(f"group {group} is not in the ledger") from None

    def _check_version(self, version: int) -> None:
        if not 0 <= version <= self.current:
            raise CoreError(f"version {version} cannot exist while batch {self.current} is collected")
