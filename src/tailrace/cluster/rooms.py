"""The rooms of a cluster. Each room owns the state of one concern.

    jobs          every job, its stage, and which are queued or run
    groups        node groups, who belongs to them, their timetable, which may have got room
    admission     rollout devices, claims of jobs that wait for a place, whose turn it is
    phases        who computes on each node group
    rearranging   which jobs are planned again, and which could make room
    watch         what time it is, when the scheduler wants to be woken, which reports it has ignored

As in the core (``core/rooms.py``), the folder of a room has its state (``room``), what events change (``facts``), what
it decides (``rules``) and what must hold (``invariants``). Only files of that folder access its fields. Other rooms use
the methods of its class: *questions*, which change nothing, and *notices*, which tell it that something has happened.
The same holds for the records of jobs and node groups, which everybody may read. ``tests/architecture/test_rooms.py``
checks this.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.cluster.admission.room import Admission
from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.groups.openings import Openings
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.groups.room import Groups
from tailrace.cluster.jobs.room import Jobs
from tailrace.cluster.phases.room import Phases
from tailrace.cluster.planning.timetable import Timetable
from tailrace.cluster.rearranging.room import Rearranging
from tailrace.cluster.settings import ClusterRules, NodeGroup
from tailrace.cluster.watch.room import Watch

ROOMS: dict[str, type] = {
    "jobs": Jobs,
    "groups": Groups,
    "admission": Admission,
    "phases": Phases,
    "rearranging": Rearranging,
    "watch": Watch,
}


class Rooms:
    """Every room of one cluster, with the rules that they share."""

    __slots__ = ("rules", *ROOMS)

    def __init__(self, rules: ClusterRules, groups: Sequence[NodeGroup], rollout_devices: int) -> None:
        names = [node for group in groups for node in group.nodes]
        if len({group.id for group in groups}) != len(groups) or len(set(names)) != len(names):
            raise ValueError("node groups and nodes need names of their own")
        self.rules = rules
        self.jobs = Jobs()
        self.groups = Groups(
            records={group.id: GroupRecord(facts=group) for group in groups},
            timetable=Timetable(groups),
            group_of_node={node: group.id for group in groups for node in group.nodes},
            openings=Openings(group.id for group in groups),
        )
        self.admission = Admission(
            num_rollout_devices=rollout_devices,
            free_rollout_devices=rollout_devices,
            shares=FairShare(dict(rules.tenants)),
        )
        self.phases = Phases(queues={group.id: GroupQueue(group.id, rules) for group in groups})
        self.rearranging = Rearranging()
        self.watch = Watch()
