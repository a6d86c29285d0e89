"""What the fleet remembers of parallel sizes: the one in use, and the preemptions of each kind of round."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.costs import CostModel


@dataclass(slots=True, kw_only=True)
class KindOfRound:
    """The size of the rounds of one kind, and how often responses were preempted since it was chosen."""

    size: int
    before: float | None = None
    """Preemptions per launched response in the round before the last one; None: there was none with this size."""
    last: float | None = None
    """The same of the last round."""
    num_launched: int = 0
    """Responses that the last round launched."""
    num_quiet: int = 0
    """Rounds in a row without a preemption."""
    num_rounds: int = 0
    """Rounds of this kind so far, of any size."""

    def change(self, size: int) -> None:
        """Use another size from now on. The counts of the old one say nothing about it."""
        self.size, self.before, self.last, self.num_quiet = size, None, None, 0

    def round_ended(self, num_preempted: int, num_launched: int) -> None:
        self.before, self.last = self.last, num_preempted / max(1, num_launched)
        self.num_launched = num_launched
        self.num_quiet = 0 if num_preempted else self.num_quiet + 1
        self.num_rounds += 1


@dataclass(slots=True, kw_only=True)
class Sizes:
    """State of the parallel sizes. Without layouts nothing of it is used."""

    current: int = 0
    """The size in use; 0: the schedule has no layouts."""
    is_changing: bool = False
    """Whether instances of another size may still be on the devices."""
    short: KindOfRound = field(default_factory=lambda: KindOfRound(size=0))
    long: KindOfRound = field(default_factory=lambda: KindOfRound(size=0))
    num_preempted: int = 0
    """Preemptions in this round."""
    measured: dict[int, CostModel] = field(default_factory=dict)
    """Costs of sizes that were measured in this run."""
    worked: dict[int, None] = field(default_factory=dict)
    """Sizes of which an instance has ended a response, the one that did so last at the end."""
    broken: dict[int, None] = field(default_factory=dict)
    """Sizes whose instances could not be started. They are not chosen again before the run is continued."""
    start_s: float | None = None
    """Seconds that the last start of an instance took."""
    wake_s: float | None = None
    """Seconds that an instance last took to come back with released memory."""

    def note_worked(self, size: int) -> None:
        """An instance of this size has ended a response."""
        self.worked.pop(size, None)
        self.worked[size] = None

    def another_that_worked(self) -> int | None:
        """Return the size other than the one in use that worked last; None if there is none."""
        others = [size for size in self.worked if size != self.current and size not in self.broken]
        return others[-1] if others else None

    def of_kind(self, *, is_long: bool) -> KindOfRound:
        return self.long if is_long else self.short
