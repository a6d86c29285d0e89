"""The one object that a driver of a cluster talks to: events in, commands out.

``handle`` notes an event, then starts, moves and plans what has become possible. The same events at the same times
always give the same commands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.cluster import admission_order, phases, rearranging
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission import admit
from tailrace.cluster.group_record import fits
from tailrace.cluster.invariants import check
from tailrace.cluster.job_record import JobRecord
from tailrace.cluster.jobs import JobSpec
from tailrace.cluster.making_room import make_room
from tailrace.cluster.rules import Grain
from tailrace.cluster.state import ClusterState
from tailrace.cluster.waits import waits
from tailrace.core.run.waits import Wait


class Scheduler:
    """Owns the state of the cluster. A driver gives each event its time, once, and performs the commands."""

    def __init__(self, event: ev.ClusterStarted) -> None:
        self.state = ClusterState.start(event.rules, event.groups, event.rollout_devices)
        self._wake_at: float | None = None
        self._may_hold = event.rules.grain is Grain.OPERATION

    def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
        """Note one event and return the commands that follow from it."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise TypeError(f"unknown event {event!r}")
        self.state.pass_time(now)
        if isinstance(event, ev.TimePassed):
            self._wake_at = None
        commands = list(handler(self.state, event, now))
        commands += rearranging.refit(self.state, now)
        if isinstance(event, ev.PhaseEnded) and event.job in self.state.in_the_way:
            commands += make_room(self.state, now, only=event.job)
        while self.state.is_changed:
            self.state.is_changed = False
            commands += admit(self.state, now)
            commands += make_room(self.state, now)
        return commands + self._wake(now)

    def waits(self, now: float) -> list[Wait]:
        """What every job waits for, since when, and until when, as far as that is known."""
        return waits(self.state, now)

    def check(self) -> None:
        """Assert everything that must hold between two events."""
        check(self.state)

    def _wake(self, now: float) -> list[do.Command]:
        holds = (group.queue.wake_at() for group in self.state.groups.values() if self._may_hold)
        times = (*holds, *self.state.calm_at.values(), self.state.order_changes_at)
        at = min(at for at in times if at is not None)
        if at == math.inf or at == self._wake_at:
            return []
        self._wake_at = at
        return [do.Wake(at=max(at, now))]


def _job_submitted(state: ClusterState, event: ev.JobSubmitted, now: float) -> Iterator[do.Command]:
    spec = event.job
    if spec.id in state.jobs:
        state.num_ignored += 1
        return
    state.num_submitted += 1
    job = JobRecord(spec=spec, number=state.num_submitted, submitted_at=now, trace=spec.trace)
    state.jobs[spec.id] = job
    if (reason := _obstacle(state, spec)) is not None:
        state.end(job, reason)
        yield do.Refuse(job=spec.id, reason=reason)
    else:
        admission_order.enter(state, job)
        state.is_changed = True


def _obstacle(state: ClusterState, spec: JobSpec) -> str | None:
    """Why the job can never run here; None: it can."""
    sized = [group.facts for group in state.groups.values() if group.facts.devices == spec.train_devices]
    if not sized:
        return f"it trains on {spec.train_devices} devices, and no node group has that many"
    if spec.rollout_devices > state.num_rollout_devices:
        return f"it needs {spec.rollout_devices} rollout devices, the cluster has {state.num_rollout_devices}"
    if not any(fits(group, spec.state) for group in sized):
        return f"its state of {spec.state.total:,} bytes does not fit on the devices of any node group"
    return None


def _job_ended(state: ClusterState, event: ev.JobEnded, now: float) -> Iterator[do.Command]:
    job = state.jobs.get(event.job)
    if job is None or not (job.is_live or job.id in state.queue):
        state.num_ignored += 1
        return
    admission_order.settle(state, job, now)
    group = state.unseat(job)
    state.end(job, event.reason)
    if group is not None:
        yield from phases.leave(state, group, job.id, now)


def _time_passed(state: ClusterState, event: ev.TimePassed, now: float) -> Iterator[do.Command]:
    return phases.tick(state, now)


_HANDLERS: dict[type[ev.Event], Callable[[ClusterState, Any, float], Iterator[do.Command]]] = {
    ev.JobSubmitted: _job_submitted,
    ev.JobProfiled: rearranging.job_profiled,
    ev.PhaseAsked: phases.phase_asked,
    ev.PhaseEnded: phases.phase_ended,
    ev.TransferMeasured: phases.transferred,
    ev.NodeLost: rearranging.node_lost,
    ev.NodeReturned: rearranging.node_returned,
    ev.JobEnded: _job_ended,
    ev.TimePassed: _time_passed,
}
