"""Which node group a job gets, by each policy. ``settings.Policy`` says what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.in_step import place_in_step
from tailrace.cluster.planning.ranking import best_place
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.settings import ClusterRules, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A place for a job."""

    group: NodeGroupId
    is_dedicated: bool = False
    footprint: Footprint | None = None
    """What to reserve in the timetable; None: nothing."""
    start_slot: int = 0
    shift_s: float = 0.0
    interference: float = 0.0


def choose(
    job: JobRecord, groups: Sequence[GroupRecord], timetable: Timetable, rules: ClusterRules, now: float
) -> Choice | None:
    """The best place among these groups, which all take the job; None: there is none now."""
    if not groups:
        return None  # the usual answer for a job that waits, so nothing is worked out before
    empty = next((group for group in groups if not group.jobs), None)
    if rules.policy is Policy.ISOLATED or job.trace is None:
        return None if empty is None else Choice(group=empty.id, is_dedicated=True)
    if rules.policy is Policy.PACK:
        fullest = max(groups, key=lambda group: (group.duty, group is empty), default=None)
        return None if fullest is None else Choice(group=fullest.id)
    return _spread(job, groups, timetable, rules, now)


def _spread(
    job: JobRecord, groups: Sequence[GroupRecord], timetable: Timetable, rules: ClusterRules, now: float
) -> Choice | None:
    assert job.trace is not None
    footprint = Footprint.of(job.trace, rules.slot_s)
    if job.duty > rules.max_duty:  # too busy to share: it gets a group of its own
        empty = next((group for group in groups if not group.jobs), None)
        return None if empty is None else Choice(group=empty.id, is_dedicated=True)
    start = slot_of(now, rules)
    # A job whose phases are not planned may need its group at any time, so no other job is planned around it.
    planned = [group.id for group in groups if group.is_planned]
    found = best_place(timetable, footprint, planned, start, rules)
    if found is None:
        found = place_in_step(timetable, job.trace, planned, start, rules)
    if found is None:
        return None
    return Choice(
        group=found.group,
        footprint=found.placement.footprint,
        start_slot=start + found.shift,
        shift_s=(start + found.shift) * rules.slot_s - now,
        interference=found.interference,
    )


def slot_of(now: float, rules: ClusterRules) -> int:
    """The first slot that begins at this time or later."""
    return -int(-now // rules.slot_s)
