"""Which queued jobs start now.

Jobs are considered in order (``rules.Order``). A job that finds no place blocks the later ones that compete with it:
those that train on groups of the same size and, if it lacks rollout devices, everyone who needs some. With backfill, a
later job may still start if the blocked one starts no later because of it (EASY backfill): the blocked job has a
*reserved start*, the earliest time at which enough of the present jobs will have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailrace.cluster import commands as do
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.group_record import GroupRecord
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.jobs import Stage, StateBytes
from tailrace.cluster.placement import Choice, choose
from tailrace.cluster.rules import Order, Policy
from tailrace.cluster.state import ClusterState

Needs = tuple[int, int, StateBytes, DemandTrace | None]
"""What decides where a job can start, and when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedStart:
    """When and where a blocked job will start at the latest, as far as is known."""

    job: JobRecord
    at: float
    group: NodeGroupId | None
    """The group that it waits for; None: it has one, and waits for rollout devices only."""
    spare_devices: int
    """Rollout devices that will be left over when it starts."""


def admit(state: ClusterState, now: float) -> Iterator[do.Command]:
    """Admit every queued job that can start.

    Jobs with the same needs have the same places and the same reserved start, so only the first of them is asked.
    """
    blocked: dict[Needs, ReservedStart] = {}
    places: dict[Needs, Choice | None] = {}
    for job in in_order(state, now):
        needs = _needs(job)
        if state.rules.policy is not Policy.SPREAD_BACKFILL and any(
            _competes(state, job, head.job) for head in blocked.values()
        ):
            continue
        if needs not in places:
            places[needs] = _place(state, job, now)
        choice = places[needs]
        if choice is not None and all(_is_harmless(state, job, choice, head, now) for head in blocked.values()):
            yield from _start(state, job, choice, now)
            places = {needs: None for needs, choice in places.items() if choice is None}  # it makes no room
        elif needs not in blocked:
            blocked[needs] = _head(state, job, now)


def _needs(job: JobRecord) -> Needs:
    return (job.spec.train_devices, job.spec.rollout_devices, job.spec.state, job.trace)


def _head(state: ClusterState, job: JobRecord, now: float) -> ReservedStart:
    """The reserved start of a blocked job. Only backfill asks when it is."""
    if state.rules.policy is Policy.SPREAD_BACKFILL:
        return reserved_start(state, job, now)
    return ReservedStart(job=job, at=now, group=None, spare_devices=0)


def in_order(state: ClusterState, now: float) -> list[JobRecord]:
    waiting = list(state.queue.values())
    if state.rules.order is Order.FIRST_COME:
        return waiting
    return sorted(waiting, key=lambda job: (-_response_ratio(job, now), job.number))


def _response_ratio(job: JobRecord, now: float) -> float:
    """(W + S) / S with the job's whole duration as S. A job of unknown duration counts as one of an hour."""
    service = job.spec.alone_s or 3600.0
    return 1.0 + (now - job.submitted_at) / service


def _place(state: ClusterState, job: JobRecord, now: float) -> Choice | None:
    if job.spec.rollout_devices > state.free_rollout_devices:
        return None
    return choose(job, state.groups_for(job, now), state.timetable, state.rules, now)


def _is_harmless(state: ClusterState, job: JobRecord, choice: Choice, head: ReservedStart, now: float) -> bool:
    """Whether the job may start although ``head``, which comes before it, cannot."""
    if not _competes(state, job, head.job):
        return True
    if state.rules.policy is not Policy.SPREAD_BACKFILL:
        return False
    if job.trace is not None and now + choice.shift_s + job.spec.steps * job.trace.step_s <= head.at:
        return True  # it has ended when the other one starts
    return choice.group != head.group and job.spec.rollout_devices <= head.spare_devices


def _competes(state: ClusterState, job: JobRecord, head: JobRecord) -> bool:
    """Whether the job wants something that ``head`` waits for."""
    competes_for_group = job.spec.train_devices == head.spec.train_devices
    return competes_for_group or (_lacks_devices(state, head) and job.spec.rollout_devices > 0)


def _lacks_devices(state: ClusterState, job: JobRecord) -> bool:
    return job.spec.rollout_devices > state.free_rollout_devices


def _start(state: ClusterState, job: JobRecord, choice: Choice, now: float) -> Iterator[do.Command]:
    state.seat(job, choice)
    del state.queue[job.id]
    state.free_rollout_devices -= job.spec.rollout_devices
    job.stage = Stage.PROFILING if job.trace is None else Stage.RUNNING
    job.admitted_at = now
    yield do.Place(job=job.id, group=choice.group, shift_s=choice.shift_s, is_dedicated=choice.is_dedicated)
    yield do.Admit(job=job.id)


def reserved_start(state: ClusterState, job: JobRecord, now: float) -> ReservedStart:
    """The earliest time at which enough jobs will have ended, if all keep their present pace."""
    group, group_at = _group_free_at(state, job, now)
    free, devices_at = state.free_rollout_devices, now
    for at, other in _endings(state.live(), now):
        if free >= job.spec.rollout_devices and at > max(group_at, devices_at):
            break
        free += other.spec.rollout_devices
        if free - other.spec.rollout_devices < job.spec.rollout_devices:
            devices_at = at
    return ReservedStart(
        job=job, at=max(group_at, devices_at), group=group, spare_devices=max(0, free - job.spec.rollout_devices)
    )


def _group_free_at(state: ClusterState, job: JobRecord, now: float) -> tuple[NodeGroupId | None, float]:
    """The group that will take the job first, and when; (None, now) if one takes it now."""
    if choose(job, state.groups_for(job, now), state.timetable, state.rules, now) is not None:
        return None, now
    times = [
        (_free_at(state, group, job, now), group.id)
        for group in state.groups.values()
        if group.facts.devices == job.spec.train_devices and group.is_usable
    ]
    at, group_id = min(times, default=(float("inf"), None))
    return group_id, at


def _free_at(state: ClusterState, group: GroupRecord, job: JobRecord, now: float) -> float:
    """When the group will have room for the job's duty. Its phases may fit only later."""
    if state.rules.policy is Policy.ISOLATED or job.trace is None:
        return max((at for at, _ in _endings(group.jobs.values(), now)), default=now)
    duty, num_jobs = group.duty, len(group.jobs)
    for at, other in _endings(group.jobs.values(), now):
        duty, num_jobs = duty - other.duty, num_jobs - 1
        if num_jobs < state.rules.max_jobs_per_group and duty + job.duty <= state.rules.max_duty:
            return at
    return now if not group.jobs else float("inf")


def _endings(jobs: Iterable[JobRecord], now: float) -> list[tuple[float, JobRecord]]:
    ends = [(job.ends_at(now), job) for job in jobs]
    known = [(float("inf") if at is None else at, job) for at, job in ends]
    return sorted(known, key=lambda pair: (pair[0], pair[1].number))
