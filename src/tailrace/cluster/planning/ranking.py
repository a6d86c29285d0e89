"""The best node group for a job, among those in whose free slots all its phases fit.

Each group is tried with its least feasible shift. Groups are compared by, in this order,

1. cost in seconds: the shift, rounded down to whole buckets, plus ``interference_weight`` times the interference;
2. interference;
3. residents whose period does not go well with the job's (``is_commensurate``);
4. free windows left on the group: fewer and longer ones are of more use to the next job;
5. duty of the group's jobs;
6. id of the group.

A later criterion is worked out only for groups that are equal in all earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.planning.fitting import Footprint, Placement, least_shift, least_shift_by_capacity
from tailrace.cluster.planning.interference import interference
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.rules import ClusterRules

PERIOD_TOLERANCE = 0.02
MAX_PERIOD_RATIO = 8
"""With the tolerance above, every ratio from about 25 on is near a whole number, so it would mean nothing."""
_DUTY_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    group: NodeGroupId
    shift: int
    """Slots from the earliest start to the start of the job's first period."""
    placement: Placement
    interference: float


@dataclass(slots=True, kw_only=True)
class SearchCounts:
    """What became of the groups that were candidates. Each counts once."""

    full: int = 0
    """Lost, or one more job would be too many or have too much duty."""
    same_as_other: int = 0
    """Empty like another group with a lower id."""
    no_capacity: int = 0
    """The capacity profile shows that no group has room at any shift."""
    no_fit: int = 0
    """The search for a shift gave up, because there is none or a better group is known."""
    compared: int = 0

    @property
    def total(self) -> int:
        return self.full + self.same_as_other + self.no_capacity + self.no_fit + self.compared


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
    counts: SearchCounts | None = None,
) -> Candidate | None:
    """Best feasible place for a job that can start at ``start_slot`` at the earliest; None: there is none."""
    counts = SearchCounts() if counts is None else counts
    groups = _worth_trying(timetable, footprint, candidates, rules, counts)
    if not groups:
        return None
    bound = _least_shift_anywhere(timetable, footprint, groups, start_slot)
    if bound is None:
        counts.no_capacity += len(groups)
        return None
    search = _Search(timetable, footprint, start_slot, rules)
    for group in groups:
        search.try_group(group, bound, counts)
    return search.best()


def _least_shift_anywhere(
    timetable: Timetable, footprint: Footprint, groups: list[NodeGroupId], start_slot: int
) -> int | None:
    """A shift below which no group has room; None: no group has room at any."""
    if len(groups) == 1:
        return 0  # looking at this group takes less time than looking at the profile of all
    least_nodes = min(timetable.num_nodes(group) for group in groups)
    return least_shift_by_capacity(timetable.profile, footprint, start_slot, least_nodes)


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
        elif timetable.busy(group).is_empty:
            empty.append(group)
        else:
            groups.append(group)
    if not empty:
        return groups
    counts.same_as_other += len(empty) - 1
    return [min(empty), *groups]


class _Search:
    def __init__(self, timetable: Timetable, footprint: Footprint, start_slot: int, rules: ClusterRules) -> None:
        self._timetable, self._footprint, self._rules = timetable, footprint, rules
        self._start = start_slot % footprint.num_slots
        self._guard = math.ceil(rules.guard_s / rules.slot_s)
        self._found: list[Candidate] = []
        self._last_worth = footprint.period - 1
        """A shift above which no group can be better than the best one found."""

    def try_group(self, group: NodeGroupId, bound: int, counts: SearchCounts) -> None:
        """Look for the group's least shift. Give up where even without interference it would not be the best."""
        busy = self._timetable.busy(group)
        shift = least_shift(busy, self._footprint, self._start, at_least=bound, at_most=self._last_worth)
        if shift is None:
            counts.no_fit += 1
            return
        counts.compared += 1
        placement = Placement(self._footprint, (self._start + shift) % self._footprint.num_slots)
        disturbance = interference(placement, self._timetable.residents(group), self._guard)
        candidate = Candidate(group=group, shift=shift, placement=placement, interference=disturbance)
        self._found.append(candidate)
        # One bucket and one slot more than needed, so that rounding does no harm.
        beyond_s = self._cost(candidate) + self._rules.bucket_s
        self._last_worth = min(self._last_worth, math.ceil(beyond_s / self._rules.slot_s) + 1)

    def best(self) -> Candidate | None:
        """Compare what was found, one criterion after the other."""
        left = self._found
        criteria: tuple[Callable[[Candidate], float], ...] = (
            self._cost, self._interference, self._num_incommensurate, self._num_windows, self._duty,
        )  # fmt: skip
        for criterion in criteria:
            if len(left) < 2:
                break
            values = [criterion(candidate) for candidate in left]
            least = min(values)
            left = [candidate for candidate, value in zip(left, values, strict=True) if value == least]
        return min(left, key=lambda candidate: candidate.group, default=None)

    def _cost(self, candidate: Candidate) -> float:
        rules = self._rules
        shift_s = candidate.shift * rules.slot_s
        if rules.bucket_s > 0:
            shift_s = math.floor(shift_s / rules.bucket_s) * rules.bucket_s
        return shift_s + rules.interference_weight * candidate.interference

    def _interference(self, candidate: Candidate) -> float:
        return candidate.interference

    def _num_incommensurate(self, candidate: Candidate) -> int:
        period = self._footprint.period
        residents = self._timetable.residents(candidate.group)
        return sum(not is_commensurate(period, resident.footprint.period) for resident in residents)

    def _num_windows(self, candidate: Candidate) -> int:
        return self._timetable.busy(candidate.group).num_windows_with(candidate.placement.ranges())

    def _duty(self, candidate: Candidate) -> float:
        return self._timetable.duty(candidate.group)
