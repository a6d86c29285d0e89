"""Claims of waiting jobs are given up or moved. Others may look at a group that has lost its claim."""

from __future__ import annotations

from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.rooms import Rooms


def drop_claim(rooms: Rooms, job: JobId) -> None:
    if (group := rooms.admission.forget_claim(job)) is not None:
        rooms.groups.give_up_claim(group)


def move_claims(rooms: Rooms, source: NodeGroupId, target: NodeGroupId) -> None:
    """Who has claimed one group claims the other one instead."""
    for job in rooms.admission.claimants(source):
        rooms.admission.claims[job] = target
        rooms.groups.give_up_claim(source)
