"""Parallel sizes: over how many devices each instance divides its model, and which instances there are of each size.

    devices          0    1    2    3
    size 1           0    1    2    3        instances 0 to 3
    size 2           [  4  ]  [  5  ]        instances 4 and 5
    size 4           [      6       ]        instance 6

Every instance has one size for its whole life. The instances of one size are a *layout*. One layout works at a time:
the others have left the devices. The core chooses when a round opens (`core/fleet/resizing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.schedule.lending import SharedPlace


@dataclass(frozen=True, slots=True, order=True)
class Division:
    """How the model of an instance is divided over devices. Another way to divide it would be another field."""

    tensor: int = 1
    """Parts into which each layer is divided (tensor parallelism)."""

    @property
    def size(self) -> int:
        """Devices of one instance."""
        return self.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All instances of one division."""

    division: Division
    first: int
    """Number of its first instance."""
    count: int
    """How many instances it has."""
    kv_tokens: int = 0
    """Size of an instance's KV cache in tokens; 0: no limit."""
    max_running: int = 0
    """Most responses an instance generates at the same time; 0: no limit."""
    max_in_flight: int = 0
    """Most responses that an instance has at the same time; 0: as many as the schedule says."""
    costs: CostModel = NOTHING_KNOWN
    """Cost model of an instance at the start of the run."""
    is_measured: bool = False
    """Whether these costs were measured with this size."""
    places: tuple[SharedPlace, ...] = ()
    """What can be lent to training while this layout works."""

    @property
    def size(self) -> int:
        return self.division.size

    @property
    def instances(self) -> range:
        return range(self.first, self.first + self.count)

    def devices_of(self, instance: int) -> tuple[int, ...]:
        """Return the devices of an instance, as positions among the devices of rollout."""
        start = (instance - self.first) * self.size
        return tuple(range(start, start + self.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Settings of parallel sizes."""

    strategy: str = "fixed"
    """Name of the strategy that chooses the size of a round (`policies/strategies.py`)."""
    layouts: tuple[Layout, ...] = ()
    """The layouts that the run may use, by size; empty: instances have one size, which the core does not know."""
    initial: int = 1
    """Size with which the run starts."""
    parks: bool = False
    """True: instances whose layout is not used release their memory and wait, so that they come back quickly. False:
    they end."""
    start_s: float = 60.0
    """Seconds that the start of an instance takes, until one was measured."""
    wake_s: float = 5.0
    """Seconds that an instance takes to come back with released memory, until it was measured."""
    horizon: int | None = 50
    """Rounds within which a change of the size must have saved more time than it took; None: the price of a change does
    not count."""
    rise: float = 1.05
    """The size is doubled if preemptions per response grow by more than this factor."""
    least_rise: float = 0.005
    """They must also grow by this many per response, and by one in all."""
    quiet_rounds: int = 4
    """The size is halved after this many rounds in a row without a preemption."""

    def __post_init__(self) -> None:
        for sentence in self._broken():
            raise ValueError(sentence)

    def _broken(self) -> Iterator[str]:
        sizes = [layout.size for layout in self.layouts]
        if sizes and (sizes != sorted(set(sizes)) or self.initial not in sizes):
            yield f"layouts must have ascending sizes, {self.initial} among them, got {sizes}"
        if self.horizon is not None and self.horizon < 1:
            yield f"horizon must be at least 1, got {self.horizon}"
        if self.rise < 1 or self.least_rise < 0 or self.quiet_rounds < 1 or min(self.start_s, self.wake_s) < 0:
            yield (
                "rise and quiet_rounds must be at least 1, least_rise, start_s and wake_s at least 0, got"
                f" {self.rise}, {self.quiet_rounds}, {self.least_rise}, {self.start_s} and {self.wake_s}"
            )

    def placed_as(self, other: Parallelism) -> Parallelism:
        """Return these settings on the devices of ``other``: what can be lent there, and whether instances are
        parked."""
        places = {layout.division: layout.places for layout in other.layouts}
        layouts = tuple(replace(each, places=places.get(each.division, ())) for each in self.layouts)
        return replace(self, layouts=layouts, parks=other.parks)

    def layout(self, size: int) -> Layout | None:
        """Return the layout of this size; None if there is none."""
        return next((layout for layout in self.layouts if layout.size == size), None)

    def layout_of(self, instance: int) -> Layout | None:
        """Return the layout that an instance belongs to; None if the core does not know its size."""
        return next((layout for layout in self.layouts if instance in layout.instances), None)


def layouts_by_order(num_devices: int, sizes: tuple[int, ...], initial: int) -> tuple[Layout, ...]:
    """Return a layout for each size, over devices that follow each other. The instances of the size with which the run
    starts have the first numbers; devices that do not fill an instance stay free."""
    found, first = [], 0
    for size in sorted(set(sizes), key=lambda size: (size != initial, size)):
        count = num_devices // size
        if not count:
            raise ValueError(f"an instance of parallel size {size} does not fit on {num_devices} devices")
        found.append(Layout(division=Division(size), first=first, count=count))
        first += count
    return tuple(sorted(found, key=lambda layout: layout.size))
