"""A place for a job beside jobs whose period is about its own, or about a multiple or a part of it.

Periods that differ by a little drift into each other within hours, so no fit lasts. But how long a step takes varies:
two jobs that are alike, each seen for one period, have two periods. And jobs that wait for each other fall into step by
themselves: the one with the shorter period arrives a little earlier each time, and waits behind the other. So the job
is planned with the period of the jobs that it joins, or a multiple or a part of it: only its pauses become longer or
shorter. A difference that would not count as drift (``rules.drift``) is not taken for real here either.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.ranking import RankedPlace, best_place
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules


def place_in_step(
    timetable: Timetable, trace: DemandTrace, candidates: Iterable[NodeGroupId], start_slot: int, rules: ClusterRules
) -> RankedPlace | None:
    """The place with the least shift beside other jobs; None: no group has jobs of such a period, and room."""
    by_period: dict[int, list[NodeGroupId]] = {}
    for group in candidates:
        if (period := _near_period(timetable, trace, group, rules)) is not None:
            by_period.setdefault(period, []).append(group)
    best: RankedPlace | None = None
    for period, groups in by_period.items():
        adapted = trace.with_period(period * rules.slot_s)
        footprint = None if adapted is None else Footprint.of(adapted, rules.slot_s, rules.horizon_slots)
        if footprint is not None:
            at_most = None if best is None else best.shift
            found = best_place(timetable, footprint, groups, start_slot, rules, at_most=at_most)
            best = min((place for place in (best, found) if place is not None), key=_rank, default=None)
    return best


def _rank(place: RankedPlace) -> tuple[int, float, NodeGroupId]:
    return place.shift, place.interference, place.group


def _near_period(timetable: Timetable, trace: DemandTrace, group: NodeGroupId, rules: ClusterRules) -> int | None:
    """The nearest period in slots that goes with a job of the group; None: none is near enough."""
    period = trace.period_s / rules.slot_s
    others = {resident.footprint.period for resident in timetable.residents(group)}
    near = [max(1, round(period / other)) * other for other in others]
    near += [other // max(1, round(other / period)) for other in others]
    target = min(near, key=lambda slots: (abs(slots - period), slots), default=None)
    return None if target is None or abs(target - period) > rules.drift * period else target
