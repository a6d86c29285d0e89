"""What must hold between two events."""

from __future__ import annotations

from tailrace.cluster.group_record import GroupRecord, fits
from tailrace.cluster.jobs import Stage
from tailrace.cluster.rules import Policy
from tailrace.cluster.state import ClusterState


def check(state: ClusterState) -> None:
    state.timetable.check()
    taken = sum(job.spec.rollout_devices for job in state.live())
    assert state.free_rollout_devices == state.num_rollout_devices - taken >= 0, "rollout devices are miscounted"
    for job in state.jobs.values():
        assert (job.id in state.queue) == (job.stage is Stage.QUEUED), f"{job.id} is {job.stage}, its queue differs"
        assert (job.seat is not None) == (job.is_live and job.displaced is None), f"{job.id} has a wrong seat"
        assert job.seat is None or state.groups[job.seat.group].jobs.get(job.id) is job
        assert job.phase is None or job.is_live
    assert set(state.running) == {job.id for job in state.jobs.values() if job.is_live}
    assert set(state.claims) <= {job.id for job in state.jobs.values() if job.seat is None and job.reason == ""}
    for group in state.groups.values():
        _check_group(state, group)


def _check_group(state: ClusterState, group: GroupRecord) -> None:
    rules, jobs = state.rules, list(group.jobs.values())
    assert group.is_usable or not jobs, f"{group.id} is lost and has jobs"
    leases = [job for job in jobs if job.phase is not None and job.phase.lease is not None]
    assert len(leases) <= 1, f"{len(leases)} jobs compute on {group.id}"
    running = group.queue.running
    assert [job.id for job in leases] == ([] if running is None else [running]), f"{group.id} runs {running}"
    if running is not None:
        assert group.queue.resident == running, f"{running} computes on {group.id}, {group.queue.resident} is loaded"
    group.queue.check()
    counted = (group.is_dedicated, group.is_planned, group.duty)
    group.count()
    assert counted == (group.is_dedicated, group.is_planned, group.duty), f"{group.id} is miscounted"
    assert len(jobs) <= 1 or not any(job.seat is not None and job.seat.is_dedicated for job in jobs)
    if len(jobs) > 1:
        assert rules.policy is not Policy.ISOLATED
        assert len(jobs) <= rules.max_jobs_per_group
        others = [job.spec.state for job in jobs[1:]]
        assert fits(group.facts, jobs[0].spec.state, others), f"the state of the jobs of {group.id} does not fit"
