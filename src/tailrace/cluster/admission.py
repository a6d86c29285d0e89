"""Which jobs get a place now: first those whose node group was lost, then queued ones in order
(``admission_order.py``).

A job that finds no place becomes the *head* of all that train on groups of its size. It claims a group: the one that
will be free for it first. Nobody joins that group while the claim lasts, unless it will have ended when the head
starts, so the group becomes free at the latest when its present jobs have ended. The start that counts is the earliest
that was ever forecast: otherwise jobs that are later than expected would let others in, again and again. Rollout
devices that the head will need are kept for it in the same way.

Later jobs of the same size wait behind the head. With backfill they may start if they do not delay it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tailrace.cluster import admission_order, phases
from tailrace.cluster import commands as do
from tailrace.cluster.group_record import GroupRecord, fits
from tailrace.cluster.ids import NodeGroupId
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.jobs import Stage
from tailrace.cluster.placement import Choice, choose
from tailrace.cluster.rules import Policy
from tailrace.cluster.state import ClusterState


@dataclass(slots=True, kw_only=True)
class Head:
    """A job that waits for a place, and what is kept for it."""

    job: JobRecord
    at: float
    """When it will start, if all jobs keep their present pace; infinite: not known."""
    promised: float
    """The earliest start that was forecast since it has its claim. Others may use its group until then."""
    group: NodeGroupId | None
    """The group that it claims; None: no group of its size is usable now."""
    spare_devices: int
    """Rollout devices that others may have and still leave it enough at its start."""


def admit(state: ClusterState, now: float) -> Iterator[do.Command]:
    """Give every job its place that can have one."""
    heads: dict[int, Head] = {}
    for job in [*displaced(state), *admission_order.in_order(state, now)]:
        size = job.spec.train_devices
        if size in heads and state.rules.policy is not Policy.SPREAD_BACKFILL:
            continue  # it waits behind the head
        choice = _place(state, job, heads.values(), now)
        if choice is not None:
            yield from _settle(state, job, choice, heads.values(), now)
            continue
        if size not in heads:
            heads[size] = head = head_of(state, job, now)
            _claim(state, head)
    state.order_changes_at = admission_order.changes_at(state, now)
    state.forget_searches(is_anybody_waiting=bool(state.queue or heads))


def displaced(state: ClusterState) -> list[JobRecord]:
    return sorted((job for job in state.live() if job.displaced is not None), key=lambda job: job.number)


def _devices(job: JobRecord) -> int:
    """Rollout devices that the job still has to get. A displaced job has them."""
    return 0 if job.is_live else job.spec.rollout_devices


def _place(state: ClusterState, job: JobRecord, heads: Collection[Head], now: float) -> Choice | None:
    """A place for the job that delays no head; None: there is none now."""
    if _devices(job) > state.free_rollout_devices or not all(_may_start(job, head, now) for head in heads):
        return None
    places = (choice for choice in _search(state, job, heads, now) if choice is not None)
    return next((choice for choice in places if all(_is_harmless(job, choice, head, now) for head in heads)), None)


def _search(state: ClusterState, job: JobRecord, heads: Iterable[Head], now: float) -> Iterator[Choice | None]:
    """The best place on a group that nobody has claimed, then the best one on a claimed group that the job may use."""
    opened, newest = state.opened_for(job), state.openings.newest
    choice = _choose_among(state, job, opened, now)
    if choice is None:
        state.searched[job.needs] = newest
    yield choice
    barred = {head.group for head in heads if not _ends_before(job, head, now)}
    yield _choose_among(state, job, [state.groups[name] for name in state.claims.values() if name not in barred], now)


def _choose_among(state: ClusterState, job: JobRecord, groups: Sequence[GroupRecord], now: float) -> Choice | None:
    taking = [group for group in groups if group.takes(job, state.rules, now)]
    choice = choose(job, taking, state.timetable, state.rules, now)
    if choice is None:
        state.await_calm(job, groups, now)
    return choice


def _may_start(job: JobRecord, head: Head, now: float) -> bool:
    """Whether there may be a place for the job that does not delay the head. This takes no search."""
    return head.group is None or _ends_before(job, head, now) or _devices(job) <= max(0, head.spare_devices)


def _is_harmless(job: JobRecord, choice: Choice, head: Head, now: float) -> bool:
    """Whether the head starts no later if this job starts now."""
    if head.group is None:
        return True  # no group that it could use is left: only a node that comes back helps it
    if _ends_before(job, head, now + choice.shift_s):
        return True
    return choice.group != head.group and _devices(job) <= max(0, head.spare_devices)


def _ends_before(job: JobRecord, head: Head, start: float) -> bool:
    """Whether the job will have ended when the head starts."""
    ends_at = math.inf if job.trace is None else start + job.spec.steps * job.trace.step_s
    return ends_at <= head.promised < math.inf


def _settle(
    state: ClusterState, job: JobRecord, choice: Choice, heads: Iterable[Head], now: float
) -> Iterator[do.Command]:
    for head in heads:
        head.spare_devices -= _devices(job)
    state.seat(job, choice, now)
    if job.displaced is not None:
        source, job.displaced = job.displaced.group, None
        yield do.Move(job=job.id, source=source, target=choice.group, shift_s=choice.shift_s)
        yield from phases.ask(state, job, now)
        return
    del state.queue[job.id]
    state.free_rollout_devices -= job.spec.rollout_devices
    job.stage = Stage.PROFILING if job.trace is None else Stage.RUNNING
    job.admitted_at = now
    admission_order.charge(state, job)
    state.running[job.id] = job
    yield do.Place(job=job.id, group=choice.group, shift_s=choice.shift_s, is_dedicated=choice.is_dedicated)
    yield do.Admit(job=job.id)


def _claim(state: ClusterState, head: Head) -> None:
    """The head claims its group, and no other job of its size has a claim.

    It keeps that group until it starts. Otherwise it might wait for another one each time, and never start.
    """
    size = head.job.spec.train_devices
    others = [name for name in state.claims if name != head.job.id and state.jobs[name].spec.train_devices == size]
    for name in others:
        state.drop_claim(name)
    if head.group is not None:
        state.claims[head.job.id], state.promises[head.job.id] = head.group, head.promised


def head_of(state: ClusterState, job: JobRecord, now: float) -> Head:
    group, group_at = _group_for(state, job, now)
    needed, free, devices_at = _devices(job), state.free_rollout_devices, now
    for at, other in _endings(state.live(), now):
        if free < needed:
            devices_at = at
        elif at > max(group_at, devices_at) or math.isinf(at):
            break
        free += other.spec.rollout_devices
    if free < needed:
        devices_at = math.inf
    at = max(group_at, devices_at)
    is_kept = group is not None and group == state.claims.get(job.id)
    promised = min(at, state.promises.get(job.id, math.inf)) if is_kept else at
    return Head(job=job, at=at, promised=promised, group=group, spare_devices=free - needed)


def _group_for(state: ClusterState, job: JobRecord, now: float) -> tuple[NodeGroupId | None, float]:
    """The group that the job claims, and when it will have room."""
    usable = [
        group
        for group in state.groups.values()
        if group.facts.devices == job.spec.train_devices and group.is_usable and fits(group.facts, job.spec.state)
    ]
    kept = [group for group in usable if group.id == state.claims.get(job.id)]
    times = [(_free_at(state, group, job, now), group.id) for group in kept or usable]
    at, found = min(times, default=(math.inf, None))
    return found, at


def _free_at(state: ClusterState, group: GroupRecord, job: JobRecord, now: float) -> float:
    """When the group will have room for the job: surely when it is empty, perhaps earlier."""
    endings = _endings(group.jobs.values(), now)
    if not endings:
        return now
    if state.rules.policy is Policy.ISOLATED or job.trace is None or job.duty > state.rules.max_duty:
        return endings[-1][0]
    if group.has_place_for(job, state.rules) and (at := group.calm_from(state.rules, now)) > now:
        return min(at, endings[-1][0])
    # When a job has ended, the group has one less than it may have: only duty and bytes can still be in the way.
    duty, num_bytes = group.duty, sum(other.spec.state.total for _, other in endings)
    for at, other in endings[:-1]:
        duty, num_bytes = duty - other.duty, num_bytes - other.spec.state.total
        has_bytes = group.facts.host_bytes is None or num_bytes + job.spec.state.total <= group.stored_bytes
        if duty + job.duty <= state.rules.max_duty and has_bytes:
            return at
    return endings[-1][0]


def _endings(jobs: Iterable[JobRecord], now: float) -> list[tuple[float, JobRecord]]:
    """When each job will end, the first one first."""
    ends = [(job.ends_at(now), job) for job in jobs]
    known = [(math.inf if at is None else at, job) for at, job in ends]
    return sorted(known, key=lambda pair: (pair[0], pair[1].number))
