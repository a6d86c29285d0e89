"""The ledger enforces the staleness bound. Every training group passes through it, under every schedule.

    reserve --> occupy --> commit ----> consume       delete: removes a group that is dropped, filtered or deferred
    (first      (finished   (only if     (the batch
     member      and         streamed)    is full)
     routed)     scored)

A committed group belongs to the current batch, whatever finishes later: it is trained while the batch is collected.

Strict admission (`deadline`, `order`) admits a group only if it can be trained within the bound however long it takes.
No finished group is dropped to keep the bound. With `count`, groups above the bound are trained and counted as
violations. Without a bound (``max_staleness`` is None), every group is admitted and none is a violation.

If ``capacity`` is above ``batch_size``, a batch has more reservations than it trains. It is ready as soon as
``batch_size`` groups are finished. Groups that then have no slot in a later batch have expired: the caller drops them.

A ledger is a plain dataclass: ``codec`` stores and restores it, and a restored ledger makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from tailrace.core.errors import CoreError, UnknownSubject
from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerEntry, LedgerRules, Overlay
from tailrace.core.ledger.buffers import Buffers
from tailrace.core.ledger.in_order import InOrder
from tailrace.core.ledger.pool import Pool


class BatchState(Enum):
    """State of the batch that is being collected."""

    WAITING = "waiting"
    """Too few groups are finished, and the batch has free slots."""
    STUCK = "stuck"
    """Too few groups are finished, and the batch has no free slot: only its own groups can complete it."""
    READY = "ready"
    """Enough groups are finished to train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """The result of ``consume``."""

    version: int
    """Version that is trained on the batch."""
    batch: tuple[GroupId, ...]
    """Groups of the batch, ordered by id."""
    staleness: tuple[int, ...]
    """Staleness of each group of the batch."""
    violations: int
    """How many groups of the batch are above ``max_staleness``."""
    expired: tuple[GroupId, ...]
    """Groups, finished or not, that no longer have a slot within the bound, ordered by id. They left the ledger."""


@dataclass
class Ledger:
    """Live groups and the batches that they will be trained in."""

    rules: LedgerRules
    current: int = 0
    """Version whose batch is being collected. It increases by 1 when that batch begins to train."""
    entries: dict[GroupId, LedgerEntry] = field(default_factory=dict)
    """Record of each live group."""
    committed: dict[GroupId, None] = field(default_factory=dict)
    """Finished groups that are certain to be in the current batch, in the order in which they were committed."""

    def __post_init__(self) -> None:
        self._store: Buffers | InOrder | Pool
        bound = self.rules.max_staleness
        if bound is None or self.rules.admission is AdmissionRule.COUNT:
            self._store = Pool(self.entries, self.rules)
        elif self.rules.admission is AdmissionRule.ORDER:
            self._store = InOrder(self.entries, self.rules, bound, first=self.current)
        else:
            self._store = Buffers(self.entries, self.rules, bound, first=self.current)

    # Admission

    def overlay(self) -> Overlay:
        """Return a light copy of the free slots, for trying out reservations."""
        return Overlay(self.rules, self.current, self._store.free())

    def can_reserve(self, version: int) -> bool:
        """Whether a group whose oldest tokens come from this version would be admitted now."""
        self._check_version(version)
        return self._store.has_room(version)

    def reserve(self, group: GroupId, version: int) -> None:
        """Admit a group whose first member goes to an instance of this version."""
        if group in self.entries:
            raise CoreError(f"group {group} is in the ledger already")
        self._check_version(version)
        if not self._store.add(group, LedgerEntry(version)):
            raise CoreError(f"no room for group {group} of version {version} while batch {self.current} is collected")

    # Changes of a group
    def occupy(self, group: GroupId, version: int | None = None) -> None:
        """Mark a group as finished and scored. ``version``: oldest version among the members that are kept, which may
        be newer than the reserved one."""
        entry = self._entry(group)
        version = entry.version if version is None else version
        if entry.is_occupied:
            raise CoreError(f"group {group} is finished already")
        if version < entry.version:
            raise CoreError(f"group {group} was reserved at version {entry.version} and cannot fall to {version}")
        self._check_version(version)
        self._store.finish(group, entry, version)

    def delete(self, group: GroupId) -> None:
        """Remove a group. Other groups move into its slot where the rules of ``Buffers`` ask for it."""
        if group in self.committed:
            raise CoreError(f"group {group} is committed to batch {self.current} and cannot leave it")
        self._store.remove(group, self._entry(group))

    def commit(self, count: int) -> tuple[GroupId, ...]:
        """Commit ``count`` more finished groups to the current batch: those that it would take first. Return them,
        ordered by id."""
        if count > self.num_uncommitted:
            raise CoreError(f"{count} groups cannot be committed: {self.num_uncommitted} are finished")
        free = (group for group in self._store.trainable() if group not in self.committed)
        chosen = sorted(islice(free, count))
        self.committed.update(dict.fromkeys(chosen))
        return tuple(chosen)

    def consume(self, count: int | None = None) -> Consumption:
        """Take the current batch out of the ledger, to be trained: the committed groups, then others. ``count``: groups
        of the batch; default: ``batch_size``."""
        count = self.rules.batch_size if count is None else count
        if not self.has(count):
            raise CoreError(f"batch {self.current} is {self.state.value}, not ready")
        holdings, expired = self._store.consume(count, self.committed)
        self.committed.clear()
        trained, self.current = self.current, self.current + 1
        batch = sorted((group, trained - entry.version) for group, entry in holdings)
        bound = self.rules.max_staleness
        violations = sum(staleness > bound for _, staleness in batch) if bound is not None else 0
        if violations and self.rules.is_strict:
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
        """State of the batch that is being collected."""
        if self.has(self.rules.batch_size):
            return BatchState.READY
        return BatchState.STUCK if self._store.is_full else BatchState.WAITING

    @property
    def is_ready(self) -> bool:
        """Whether the current batch can be consumed."""
        return self.state is BatchState.READY

    def has(self, count: int) -> bool:
        """Whether at least ``count`` finished groups may be trained now."""
        return self._store.num_trainable >= count

    @property
    def num_uncommitted(self) -> int:
        """Finished groups that may be trained now and are not committed."""
        return self._store.num_trainable - len(self.committed)

    def awaited(self) -> tuple[GroupId, ...]:
        """Return the unfinished groups that a stuck batch waits for. Empty unless admission is strict."""
        return tuple(self._store.awaited()) if self.state is BatchState.STUCK else ()

    @property
    def num_occupied(self) -> int:
        """Finished groups."""
        return self._store.num_occupied

    @property
    def num_reserved(self) -> int:
        """Unfinished groups."""
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
        """Raise CoreError if an invariant is broken. It checks every entry: for tests and for restored ledgers."""
        self._store.check()
        if not isinstance(self._store, Pool) and self._store.first != self.current:
            raise CoreError(f"the first batch to come is {self._store.first}, not {self.current}")
        for entry in self.entries.values():
            self._check_version(entry.version)
        if not self.committed.keys() <= set(self._store.trainable()):
            raise CoreError(f"committed groups of batch {self.current} cannot be trained: {list(self.committed)}")

    def _entry(self, group: GroupId) -> LedgerEntry:
        try:
            return self.entries[group]
        except KeyError:
            raise UnknownSubject(f"group {group} is not in the ledger") from None

    def _check_version(self, version: int) -> None:
        if not 0 <= version <= self.current:
            raise CoreError(f"version {version} cannot exist while batch {self.current} is collected")
