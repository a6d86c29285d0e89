"""A place for a job beside jobs whose period is about its own, or about a multiple or a part of it.

Periods that differ by a little drift into each other within hours, so there is no fit that lasts. But how long a step
takes varies: two jobs that are alike, each seen for one period, have two periods. And jobs that wait for each other
fall into step by themselves: the one with the shorter period arrives a little earlier each time, and waits behind the
other. So the job is planned with the period of the jobs that it joins, or a multiple of it, or several of its periods
are planned in one of theirs: only its pauses become longer or shorter. A difference that would not count as drift
(``rules.drift``) is not taken for real here either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.ranking import RankedPlace, best_place
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules

MAX_REPEATS = 32
"""Periods of a job that are planned in one of another job at most: all of them are looked at in each search."""


@dataclass(frozen=True, slots=True, order=True)
class _Pattern:
    """How a job of about this period is planned."""

    difference: float
    """Slots by which its period changes."""
    period: int
    """Slots after which its plan repeats."""
    repeats: int
    """Periods of the job in that time."""


def place_in_step(
    timetable: Timetable, trace: DemandTrace, candidates: Iterable[NodeGroupId], start_slot: int, rules: ClusterRules
) -> RankedPlace | None:
    """The place with the least shift beside other jobs; None: no group has jobs of such a period, and room."""
    by_pattern: dict[tuple[int, int], list[NodeGroupId]] = {}
    for group in candidates:
        if (pattern := _near_pattern(timetable, trace, group, rules)) is not None:
            by_pattern.setdefault((pattern.period, pattern.repeats), []).append(group)
    best: RankedPlace | None = None
    for (period, repeats), groups in by_pattern.items():
        adapted = trace.repeated(repeats).with_period(period * rules.slot_s)
        if adapted is not None:
            footprint = Footprint.of(adapted, rules.slot_s, repeats=repeats)
            at_most = None if best is None else best.shift
            found = best_place(timetable, footprint, groups, start_slot, rules, at_most=at_most)
            best = min((place for place in (best, found) if place is not None), key=_rank, default=None)
    return best


def _rank(place: RankedPlace) -> tuple[int, float, NodeGroupId]:
    return place.shift, place.interference, place.group


def _near_pattern(timetable: Timetable, trace: DemandTrace, group: NodeGroupId, rules: ClusterRules) -> _Pattern | None:
    """The pattern with a job of the group that is nearest to the job's own; None: none is near enough."""
    period = trace.period_s / rules.slot_s
    near = []
    for other in {resident.footprint.period for resident in timetable.residents(group)}:
        multiple, repeats = max(1, round(period / other)), max(1, round(other / period))
        near.append(_Pattern(abs(multiple * other - period), multiple * other, 1))
        if repeats <= MAX_REPEATS:
            near.append(_Pattern(abs(other / repeats - period), other, repeats))
    nearest = min(near, default=None)
    return None if nearest is None or nearest.difference > rules.drift * period else nearest
