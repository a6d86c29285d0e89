"""What must hold in the groups room between two events."""

from __future__ import annotations

from tailrace.cluster.groups.record import GroupRecord, fits
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.settings import ClusterRules, Policy


def check(rooms: Rooms) -> None:
    groups = rooms.groups
    groups.timetable.check()
    for job in rooms.jobs.every():
        assert (job.seat is not None) == (job.is_live and job.displaced is None), f"{job.id} has a wrong seat"
        assert job.seat is None or groups.records[job.seat.group].jobs.get(job.id) is job
    for group in groups.records.values():
        _check_group(group, rooms.rules)


def _check_group(group: GroupRecord, rules: ClusterRules) -> None:
    jobs = list(group.jobs.values())
    assert group.is_usable or not jobs, f"{group.id} is lost and has jobs"
    counted = (group.is_dedicated, group.is_planned, group.duty)
    group.count()
    assert counted == (group.is_dedicated, group.is_planned, group.duty), f"{group.id} is miscounted"
    assert len(jobs) <= 1 or not any(job.seat is not None and job.seat.is_dedicated for job in jobs)
    if len(jobs) > 1:
        assert rules.policy is not Policy.ISOLATED
        assert len(jobs) <= rules.max_jobs_per_group
        others = [job.spec.state for job in jobs[1:]]
        spec = jobs[0].spec
        assert fits(group.facts, spec.state, others, parts=spec.device_parts), (
            f"the state of the jobs of {group.id} does not fit"
        )
