"""The handler of every event, and the rules in the order in which they are applied. The code is in the rooms.

A handler notes what has happened. What the queue of a node group decides about its next turn follows from the report
itself, so handlers return commands too. The rules then look at the state: they start, move and plan what has become
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission.rules import admit
from tailrace.cluster.groups import facts as groups_facts
from tailrace.cluster.jobs import facts as jobs_facts
from tailrace.cluster.phases import facts as phases_facts
from tailrace.cluster.rearranging.making_room import make_room
from tailrace.cluster.rearranging.rules import refit
from tailrace.cluster.rooms import Rooms
from tailrace.cluster.watch.rules import wake

Handler = Callable[[Rooms, Any, float], Iterator[do.Command]]


def time_passed(rooms: Rooms, event: ev.TimePassed, now: float) -> Iterator[do.Command]:
    rooms.watch.wake()
    return phases_facts.time_passed(rooms, event, now)


HANDLERS: dict[type[ev.Event], Handler] = {
    ev.JobSubmitted: jobs_facts.job_submitted,
    ev.JobProfiled: jobs_facts.job_profiled,
    ev.JobEnded: jobs_facts.job_ended,
    ev.PhaseAsked: phases_facts.phase_asked,
    ev.PhaseEnded: phases_facts.phase_ended,
    ev.TransferMeasured: phases_facts.transfer_measured,
    ev.NodeLost: groups_facts.node_lost,
    ev.NodeReturned: groups_facts.node_returned,
    ev.TimePassed: time_passed,
}


def apply_rules(rooms: Rooms, event: ev.Event, now: float) -> Iterator[do.Command]:
    yield from refit(rooms, now)
    if isinstance(event, ev.PhaseEnded) and rooms.rearranging.is_in_the_way(event.job):
        yield from make_room(rooms, now, only=event.job)
    while rooms.admission.begin_looking():
        yield from admit(rooms, now)
        yield from make_room(rooms, now)
    yield from wake(rooms, now)
