"""The interface of policies that choose the parallel size of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tailrace.core.costs import CostModel
from tailrace.core.schedule.parallelism import Division


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeView:
    """One of the sizes that a round may use."""

    division: Division
    num_instances: int
    kv_tokens: int
    """Size of an instance's KV cache in tokens; 0: no limit."""
    max_running: int
    """Most responses an instance generates at the same time; 0: no limit."""
    costs: CostModel
    is_measured: bool
    """Whether these costs are its own. Otherwise they are those of another size."""
    change_s: float
    """Seconds until its instances can work; 0: they do."""

    @property
    def size(self) -> int:
        return self.division.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelismView:
    """What a policy sees when a round opens. Rounds of the other kind, short or long, have a size of their own."""

    size: int
    """Size of the last round of this kind."""
    sizes: Sequence[SizeView]
    """Sizes that the run may use, in ascending order."""
    before: float | None
    """Preemptions per launched response in the round of this kind before the last one; None: not known with this
    size."""
    last: float | None
    """The same of the last round of this kind."""
    num_launched: int
    """Responses that the last round of this kind launched."""
    num_quiet: int
    """Rounds of this kind in a row, with this size, that had no preemption."""
    active: Sequence[float]
    """Share of the responses of earlier rounds of this kind that got as far as each bin of lengths."""
    max_length: int
    """Most tokens of a response: the end of the last bin."""
    prompt_length: int
    rounds: tuple[int, int]
    """Expected rounds within the horizon: of this kind, of the other kind."""
    other_size: int
    """Size of the rounds of the other kind."""
    back_s: float
    """Seconds to change to a size that worked before."""

    def of(self, size: int) -> SizeView:
        return next(each for each in self.sizes if each.size == size)

    def next_to(self, size: int, *, larger: bool) -> SizeView | None:
        """Return the next larger or next smaller size; None if there is none."""
        if larger:
            return next((each for each in self.sizes if each.size > size), None)
        return next((each for each in reversed(self.sizes) if each.size < size), None)


class ParallelismPolicy(Protocol):
    """Chooses the size of the round that opens."""

    changes: ClassVar[bool]
    """Whether it ever changes the size. If not, it is not asked."""

    def choose(self, view: ParallelismView) -> Division: ...
