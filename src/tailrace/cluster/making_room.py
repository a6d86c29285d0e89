"""A job waits for a place, and another one is alone on its group: if that one fits beside others, it moves there.

The group that it leaves is empty, so the waiting job can start on it at once. Jobs of unknown demand can start only
like that. There is one such move for each admission at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest

from tailrace.cluster import commands as do
from tailrace.cluster import rearranging
from tailrace.cluster.group_record import GroupRecord, fits
from tailrace.cluster.ids import JobId
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.rules import Policy
from tailrace.cluster.state import ClusterState

MAX_TRIED = 4
"""Jobs that are tried for each job that waits. Those with the least duty: they fit in most easily."""


def make_room(state: ClusterState, now: float, only: JobId | None = None) -> Iterator[do.Command]:
    """Empty a group for each job that waits for one, if that can be done. ``only``: look at no other job to move."""
    if state.rules.policy is Policy.ISOLATED:
        return
    if only is None:
        seen = (state.openings.newest, state.num_begun, state.free_rollout_devices, *state.claims.items())
        if seen == state.room_searched:
            return  # the same jobs wait, nothing has become free, and there is no other group to join
        state.room_searched, state.in_the_way = seen, set()
    for name in list(state.claims):
        waiting = state.jobs[name]
        if waiting.is_live or waiting.spec.rollout_devices <= state.free_rollout_devices:
            yield from _empty_a_group(state, waiting, only, now)


def _empty_a_group(state: ClusterState, waiting: JobRecord, only: JobId | None, now: float) -> Iterator[do.Command]:
    if any(not group.jobs for group in _usable(state, waiting)):
        return  # it can start now
    for job in _alone(state, waiting, only):
        if job.phase is not None and job.phase.lease is not None:
            state.in_the_way.add(job.id)  # it is looked at again when its lease ends
        elif moves := list(rearranging.join_others(state, job, now)):
            yield from moves
            return
        else:
            state.await_calm(job, state.groups.values(), now)


def _alone(state: ClusterState, waiting: JobRecord, only: JobId | None) -> list[JobRecord]:
    """Jobs that are alone on a group which the waiting job could use, and need not be."""
    found = [
        job
        for group in _usable(state, waiting)
        if len(group.jobs) == 1 and not group.is_dedicated
        for job in group.jobs.values()
        if only is None or job.id == only
    ]
    return nsmallest(MAX_TRIED, found, key=lambda job: (job.duty, job.number))


def _usable(state: ClusterState, job: JobRecord) -> Iterator[GroupRecord]:
    """Groups on which the job could run if they were empty."""
    for group in state.groups.values():
        if group.is_usable and group.facts.devices == job.spec.train_devices and fits(group.facts, job.spec.state):
            yield group
