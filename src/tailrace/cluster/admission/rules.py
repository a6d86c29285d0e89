"""Which jobs get a place now: first those whose node group was lost, then queued ones in order (``order.py``).

A job that finds no place becomes the *head* of all that train on groups of its size. It claims a group: the one that
will be free for it first. While the claim lasts, only jobs that will have ended when the head starts may join that
group, so it becomes free at the latest when its present jobs have ended. The start that counts is the earliest that was
ever forecast: otherwise jobs that are later than expected would let others in, again and again. Rollout devices that
the head will need are kept for it in the same way.

Later jobs of the same size wait behind the head. With backfill they may start if they do not delay it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from tailrace.cluster import commands as do
from tailrace.cluster.admission import order
from tailrace.cluster.admission.claims import drop_claim
from tailrace.cluster.admission.heads import Head, devices_needed, head_of
from tailrace.cluster.groups.placement import Choice, choose
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases import leases
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.settings import Policy


def admit(rooms: Rooms, now: float) -> Iterator[do.Command]:
    """Give every job its place that can have one."""
    heads: dict[int, Head] = {}
    for job in [*rooms.jobs.displaced(), *order.in_order(rooms, now)]:
        size = job.spec.train_devices
        if size in heads and rooms.rules.policy is not Policy.SPREAD_BACKFILL:
            continue  # it waits behind the head
        choice = _place(rooms, job, heads.values(), now)
        if choice is not None:
            yield from _settle(rooms, job, choice, heads.values(), now)
            continue
        if size not in heads:
            heads[size] = head = head_of(rooms, job, now)
            _claim(rooms, head)
    rooms.admission.order_changes_at = order.changes_at(rooms, now)
    _forget_searches(rooms, is_anybody_waiting=bool(rooms.jobs.queued() or heads))


def _place(rooms: Rooms, job: JobRecord, heads: Collection[Head], now: float) -> Choice | None:
    """A place for the job that delays no head; None: there is none now."""
    if not rooms.admission.has_devices(devices_needed(job)) or not all(_may_start(job, head, now) for head in heads):
        return None
    places = (choice for choice in _search(rooms, job, heads, now) if choice is not None)
    return next((choice for choice in places if all(_is_harmless(job, choice, head, now) for head in heads)), None)


def _search(rooms: Rooms, job: JobRecord, heads: Iterable[Head], now: float) -> Iterator[Choice | None]:
    """The best place on a group that nobody has claimed, then the best one on a claimed group that the job may use."""
    admission, groups = rooms.admission, rooms.groups
    newest, claimed = groups.newest_opening, set(admission.claims.values())
    opened = [group for group in groups.opened_since(admission.last_search(job.needs)) if group.id not in claimed]
    choice = _choose_among(rooms, job, opened, now)
    if choice is None:
        admission.searched[job.needs] = newest
    yield choice
    barred = {head.group for head in heads if not _ends_before(job, head, now)}
    usable = [groups.named(name) for name in admission.claims.values() if name not in barred]
    yield _choose_among(rooms, job, usable, now)


def _choose_among(rooms: Rooms, job: JobRecord, groups: Sequence[GroupRecord], now: float) -> Choice | None:
    taking = [group for group in groups if group.takes(job, rooms.rules, now)]
    choice = choose(job, taking, rooms.groups.timetable, rooms.rules, now)
    if choice is None:
        rooms.groups.await_opening(job, groups, rooms.rules, now)
    return choice


def _may_start(job: JobRecord, head: Head, now: float) -> bool:
    """Whether there may be a place for the job that does not delay the head. This takes no search."""
    return head.group is None or _ends_before(job, head, now) or devices_needed(job) <= max(0, head.spare_devices)


def _is_harmless(job: JobRecord, choice: Choice, head: Head, now: float) -> bool:
    """Whether the head starts no later if this job starts now."""
    if head.group is None:
        return True  # no group that it could use is left: only a node that comes back helps it
    if _ends_before(job, head, now + choice.shift_s):
        return True
    return choice.group != head.group and devices_needed(job) <= max(0, head.spare_devices)


def _ends_before(job: JobRecord, head: Head, start: float) -> bool:
    """Whether the job will have ended when the head starts."""
    ends_at = math.inf if job.trace is None else start + job.spec.steps * job.trace.step_s
    return ends_at <= head.promised < math.inf


def _settle(rooms: Rooms, job: JobRecord, choice: Choice, heads: Iterable[Head], now: float) -> Iterator[do.Command]:
    for head in heads:
        head.spare_devices -= devices_needed(job)
    rooms.groups.seat(job, choice, now)
    drop_claim(rooms, job.id)
    if job.displaced is not None:
        source = job.displaced.group
        job.find_group()
        yield do.Move(job=job.id, source=source, target=choice.group, shift_s=choice.shift_s)
        yield from leases.ask(rooms, job, now)
        return
    order.begin(rooms, job, now)
    yield do.Place(job=job.id, group=choice.group, shift_s=choice.shift_s, is_dedicated=choice.is_dedicated)
    yield do.Admit(job=job.id)


def _claim(rooms: Rooms, head: Head) -> None:
    """The head claims its group, and no other job of its size has a claim.

    It keeps that group until it starts. Otherwise it might wait for another one each time, and never start.
    """
    admission, job = rooms.admission, head.job
    for name in list(admission.claims):
        if name != job.id and rooms.jobs.named(name).spec.train_devices == job.spec.train_devices:
            drop_claim(rooms, name)
    if head.group is not None:
        admission.claims[job.id], admission.promises[job.id] = head.group, head.promised


def _forget_searches(rooms: Rooms, *, is_anybody_waiting: bool) -> None:
    """Forget the searches of jobs that do not wait any more, and, if nobody waits, for which groups they waited.

    Times at which groups open belong to searches: without the times, the searches would never be repeated.
    """
    searched, queued = rooms.admission.searched, rooms.jobs.queued()
    if not is_anybody_waiting:
        rooms.groups.await_nothing()
        searched.clear()
    elif len(searched) > 2 * len(queued):
        rooms.admission.forget_searches({job.needs for job in queued})
