"""The best node group for a job, among those whose jobs its phases never meet.

Each group is tried with its least feasible shift. Groups are compared by, in this order,

1. cost in seconds: the shift, rounded down to whole buckets, plus ``interference_weight`` times the interference;
2. interference;
3. residents whose period does not go well with the job's (``is_commensurate``);
4. free windows left on the group, per time: fewer and longer ones are of more use to the next job;
5. duty of the group's jobs;
6. id of the group.

A later criterion is worked out only for groups that are equal in all earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, PlacedFootprint, least_shift
from tailrace.cluster.planning.free_windows import windows_per_slot
from tailrace.cluster.planning.interference import interference
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules

PERIOD_TOLERANCE = 0.02
MAX_PERIOD_RATIO = 8
"""With the tolerance above, every ratio from about 25 on is near a whole number, so it would mean nothing."""
_DUTY_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlace:
    group: NodeGroupId
    shift: int
    """Slots from the earliest start to the start of the job's first period."""
    placement: PlacedFootprint
    interference: float


@dataclass(slots=True, kw_only=True)
class SearchCounts:
    """What became of the groups that were candidates. Each counts once."""

    full: int = 0
    """Lost, or one more job would be too many or have too much duty."""
    same_as_other: int = 0
    """Empty like another group with a lower id."""
    no_fit: int = 0
    """The search for a shift gave up, because there is none or a better group is known."""
    compared: int = 0

    @property
    def total(self) -> int:
        return self.full + self.same_as_other + self.no_fit + self.compared


def is_commensurate(period: int, other: int) -> bool:
    """Whether one period is nearly a multiple of the other, up to ``MAX_PERIOD_RATIO``."""
    short, long = sorted((period, other))
    multiple = round(long / short)
    return multiple <= MAX_PERIOD_RATIO and abs(long - multiple * short) <= PERIOD_TOLERANCE * multiple * short


def has_room(timetable: Timetable, group: NodeGroupId, footprint: Footprint, rules: ClusterRules) -> bool:
    """Whether the group is there and may have one more job with this duty. Phases are not fitted."""
    plan = timetable.plan(group)
    return (
        len(plan.reservations) < rules.max_jobs_per_group
        and plan.duty + footprint.duty <= rules.max_duty + _DUTY_ROUNDING
        and not plan.is_lost
    )


def best_place(
    timetable: Timetable,
    footprint: Footprint,
    candidates: Iterable[NodeGroupId],
    start_slot: int,
    rules: ClusterRules,
    *,
    at_most: int | None = None,
    counts: SearchCounts | None = None,
) -> RankedPlace | None:
    """Best feasible place for a job that can start at ``start_slot`` at the earliest; None: there is none.

    ``at_most``: a larger shift is of no use.
    """
    counts = SearchCounts() if counts is None else counts
    search = _Search(timetable, footprint, start_slot, rules, at_most)
    for group in _worth_trying(timetable, footprint, candidates, rules, counts):
        search.try_group(group, counts)
    return search.best()


def _worth_trying(
    timetable: Timetable,
    footprint: Footprint,
    candidates: Iterable[NodeGroupId],
    rules: ClusterRules,
    counts: SearchCounts,
) -> list[NodeGroupId]:
    """Groups that have room. Of the empty ones, which rank alike, only the one with the lowest id; it comes first."""
    groups, empty = [], []
    for group in candidates:
        if not has_room(timetable, group, footprint, rules):
            counts.full += 1
        elif not timetable.residents(group):
            empty.append(group)
        else:
            groups.append(group)
    if not empty:
        return groups
    counts.same_as_other += len(empty) - 1
    return [min(empty), *groups]


@dataclass(frozen=True, slots=True)
class _Fit:
    group: NodeGroupId
    shift: int
    placement: PlacedFootprint


class _Search:
    def __init__(
        self, timetable: Timetable, footprint: Footprint, start_slot: int, rules: ClusterRules, at_most: int | None
    ) -> None:
        self._timetable, self._footprint, self._rules = timetable, footprint, rules
        self._start = start_slot
        self._guard = math.ceil(rules.guard_s / rules.slot_s)
        self._found: list[_Fit] = []
        self._disturbances: dict[NodeGroupId, float] = {}
        self._last_worth = footprint.period - 1 if at_most is None else min(at_most, footprint.period - 1)
        """A shift above which no group can be better than the best one found."""

    def try_group(self, group: NodeGroupId, counts: SearchCounts) -> None:
        """Look for the group's least shift. Give up where even without interference it would not be the best."""
        residents = self._timetable.residents(group)
        shift = least_shift(residents, self._footprint, self._start, at_most=self._last_worth)
        if shift is None:
            counts.no_fit += 1
            return
        counts.compared += 1
        fit = _Fit(group, shift, PlacedFootprint(self._footprint, self._start + shift))
        self._found.append(fit)
        # One bucket and one slot more than needed, so that rounding does no harm.
        beyond_s = self._cost(fit) + self._rules.bucket_s
        self._last_worth = min(self._last_worth, math.ceil(beyond_s / self._rules.slot_s) + 1)

    def best(self) -> RankedPlace | None:
        """Compare what was found, one criterion after the other."""
        left = self._found
        criteria: tuple[Callable[[_Fit], float], ...] = (
            self._cost, self._interference, self._num_incommensurate, self._windows, self._duty,
        )  # fmt: skip
        for criterion in criteria:
            if len(left) < 2:
                break
            values = [criterion(fit) for fit in left]
            least = min(values)
            left = [fit for fit, value in zip(left, values, strict=True) if value == least]
        if not left:
            return None
        best = min(left, key=lambda fit: fit.group)
        disturbance = self._interference(best)
        return RankedPlace(group=best.group, shift=best.shift, placement=best.placement, interference=disturbance)

    def _cost(self, fit: _Fit) -> float:
        rules = self._rules
        shift_s = fit.shift * rules.slot_s
        if rules.bucket_s > 0:
            shift_s = math.floor(shift_s / rules.bucket_s) * rules.bucket_s
        if rules.interference_weight > 0:
            shift_s += rules.interference_weight * self._interference(fit)
        return shift_s

    def _interference(self, fit: _Fit) -> float:
        if fit.group not in self._disturbances:
            residents = self._timetable.residents(fit.group)
            self._disturbances[fit.group] = interference(fit.placement, residents, self._guard)
        return self._disturbances[fit.group]

    def _num_incommensurate(self, fit: _Fit) -> int:
        period = self._footprint.period
        residents = self._timetable.residents(fit.group)
        return sum(not is_commensurate(period, resident.footprint.period) for resident in residents)

    def _windows(self, fit: _Fit) -> float:
        return windows_per_slot([*self._timetable.residents(fit.group), fit.placement])

    def _duty(self, fit: _Fit) -> float:
        return self._timetable.duty(fit.group)
