"""What is known about the phases of one job: the one in progress, and how late the job was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tailrace.cluster.job_spec import ALL_PARTS, Parts, in_order


@dataclass(slots=True, kw_only=True)
class PhaseInProgress:
    """A phase that was asked for and has not ended."""

    asked_at: float
    operations_s: tuple[float, ...]
    slack_s: float
    parts: Parts = ALL_PARTS
    """Parts of the state that it needs on the devices."""
    lease: int | None = None
    """Number of its lease; None: it waits."""
    num_granted: int = 0
    """Operations that the lease covers."""

    def late_s(self, now: float) -> float:
        """Seconds that it has waited beyond its slack, if it has no lease before ``now``."""
        return max(0.0, now - self.asked_at - self.slack_s)


@dataclass(slots=True, kw_only=True)
class PhaseLog:
    phase: PhaseInProgress | None = None
    asked_at: float | None = None
    """When the job asked for its newest phase."""
    next_asks_at: float | None = None
    """When the job said that it will ask again, after its last operations; None: it did not say."""
    parts_of: dict[int, Parts] = field(default_factory=dict)
    """Parts of the state that each phase of a period asked for last."""
    num_phases: int = 0
    """Complete phases."""
    is_between_operations: bool = False
    """Whether some operations of a phase have run, and others are still to be asked for."""
    seconds_in_phase: float = 0.0
    """Seconds that the operations of the present phase took so far."""
    late_in_phase_s: float = 0.0
    """Seconds that the present phase waited beyond its slack."""
    seated_at: float = 0.0
    """Since when the job has its present place."""
    late_s: float = 0.0
    """Seconds that phases waited beyond their slack, since the job has its present place."""

    # Questions

    @property
    def is_computing(self) -> bool:
        return self.phase is not None and self.phase.lease is not None

    @property
    def known_parts(self) -> Parts:
        """Parts of the state that its phases ask for, as far as that is known."""
        return in_order(part for parts in self.parts_of.values() for part in parts)

    def wait_share(self, now: float) -> float:
        """Share of the time in its present place that the job has waited."""
        late_s = self.late_s
        if self.phase is not None and self.phase.lease is None:
            late_s += self.phase.late_s(now)
        return late_s / (now - self.seated_at)

    def wait_share_falls_at(self, most: float, now: float) -> float:
        """When the share of waiting, which is larger now, will be ``most``, if no later phase waits. Infinite: that is
        known only when the present phase has its lease."""
        waits_from = math.inf
        if self.phase is not None and self.phase.lease is None:
            waits_from = self.phase.asked_at + self.phase.slack_s
        if most <= 0 or waits_from < now:
            return math.inf
        at = self.seated_at + self.late_s / most
        while self.late_s > most * (at - self.seated_at) or self.late_s / (at - self.seated_at) > most:
            at = math.nextafter(at, math.inf)  # at this time the share is not above ``most``, rounding included
        return at if at <= waits_from else math.inf

    # Notices

    def take_place(self, now: float) -> None:
        self.seated_at, self.late_s = now, 0.0

    def keep_place(self, seated_at: float, late_s: float) -> None:
        """The job has the same place as before, after all."""
        self.seated_at, self.late_s = seated_at, late_s

    def ask(
        self,
        operations_s: tuple[float, ...],
        slack_s: float,
        now: float,
        *,
        parts: Parts = ALL_PARTS,
        number: int = 0,
    ) -> None:
        """``number``: which phase of its period it is."""
        self.phase = PhaseInProgress(asked_at=now, operations_s=operations_s, slack_s=slack_s, parts=parts)
        self.next_asks_at, self.parts_of[number] = None, parts
        if not self.is_between_operations:
            self.asked_at = now

    def grant(self, lease: int, num_operations: int, now: float) -> None:
        assert self.phase is not None
        assert self.phase.lease is None
        self.phase.lease, self.phase.num_granted = lease, num_operations
        late_s = self.phase.late_s(now)
        self.late_s += late_s
        self.late_in_phase_s += late_s

    def withdraw_lease(self) -> None:
        """What the lease covered did not happen: the phase waits again."""
        if self.phase is not None:
            self.phase.lease, self.phase.num_granted = None, 0

    def end_lease(self, seconds: float, *, failed: bool) -> None:
        assert self.phase is not None
        self.seconds_in_phase += seconds if math.isfinite(seconds) and seconds > 0 else 0.0
        self.is_between_operations = self.phase.num_granted < len(self.phase.operations_s) and not failed
        self.phase = None

    def foretell(self, next_in_s: float | None, now: float) -> None:
        """The job has said after how many seconds it will ask again."""
        is_sound = next_in_s is not None and 0 <= next_in_s < math.inf
        self.next_asks_at = now + next_in_s if next_in_s is not None and is_sound else None

    def end_phase(self, *, failed: bool) -> None:
        self.seconds_in_phase = self.late_in_phase_s = 0.0
        self.num_phases += not failed
