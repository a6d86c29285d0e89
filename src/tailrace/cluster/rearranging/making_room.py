"""A job waits for a place, and another one is alone on its group: if that one fits beside others, it moves there.

The group that it leaves is empty, so the waiting job can start on it at once. Jobs of unknown demand can start only
like that. There is one such move for each admission at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

from tailrace.cluster import commands as do
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.ids import JobId
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.rearranging.rules import join_others
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.settings import Policy

MAX_TRIED = 4
"""Jobs that are tried for each job that waits. Those with the least duty: they fit in most easily."""


def make_room(rooms: Rooms, now: float, only: JobId | None = None) -> Iterator[do.Command]:
    """Empty a group for each job that waits for one, if that can be done. ``only``: look at no other job to move."""
    if rooms.rules.policy is Policy.ISOLATED:
        return
    admission, room = rooms.admission, rooms.rearranging
    if only is None:
        devices, groups = admission.free_rollout_devices, rooms.groups
        seen = (groups.newest_opening, groups.num_begun, devices, *admission.all_claims())
        if seen == room.room_searched:
            return  # the same jobs wait, nothing has become free, and there is no other group to join
        room.room_searched, room.in_the_way = seen, set()
    for name, _ in admission.all_claims():
        waiting = rooms.jobs.named(name)
        if waiting.is_live or admission.has_devices(waiting.spec.rollout_devices):
            yield from _empty_a_group(rooms, waiting, only, now)


def _empty_a_group(rooms: Rooms, waiting: JobRecord, only: JobId | None, now: float) -> Iterator[do.Command]:
    if any(not group.jobs for group in _usable(rooms, waiting)):
        return  # it can start now
    for job in _alone(rooms, waiting, only):
        if job.log.is_computing:
            rooms.rearranging.in_the_way.add(job.id)  # it is looked at again when its lease ends
        elif moves := list(join_others(rooms, job, now)):
            yield from moves
            return
        else:
            rooms.groups.await_opening(job, rooms.groups.every(), rooms.rules, now)


def _alone(rooms: Rooms, waiting: JobRecord, only: JobId | None) -> list[JobRecord]:
    """Jobs that are alone on a group which the waiting job could use, and need not be."""
    found = [
        job
        for group in _usable(rooms, waiting)
        if len(group.jobs) == 1 and not group.is_dedicated
        for job in group.jobs.values()
        if only is None or job.id == only
    ]
    return nsmallest(MAX_TRIED, found, key=lambda job: (job.duty, job.number))


def _usable(rooms: Rooms, job: JobRecord) -> Iterator[GroupRecord]:
    """Groups on which the job could run if they were empty."""
    for group in rooms.groups.every():
        if group.is_usable and group.facts.devices == job.spec.train_devices and group.can_hold(job.spec):
            yield group
