"""Give a group to the instance with the fewest responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.core.admission import Overlay
from tailrace.core.ids import InstanceId
from tailrace.core.policy import FleetView, InstanceView, Route, WaitingGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded:
    """Ties go to the lower instance number, so that a run repeats exactly.

    A group goes to one instance as a whole, even if that overshoots the capacity by a few members: its
    prompt is then prefilled once.
    """

    def route(self, view: FleetView) -> Iterator[Route]:
        loads = {v.instance: v.num_responses for v in view.instances}
        admission = view.admission.copy()
        for group in view.queue:
            roomy = [v for v in view.instances if loads[v.instance] < v.capacity]
            fitting = [v for v in roomy if _fits(group, v, admission, view)]
            if fitting:
                chosen = min(fitting, key=lambda v: (loads[v.instance], v.instance))
                yield from _give(group, chosen, loads, admission)
            elif group.version is None or not roomy:
                return  # what is new has the same claim as what is behind it


def _fits(group: WaitingGroup, instance: InstanceView, admission: Overlay, view: FleetView) -> bool:
    if group.is_exact:
        return instance.version == group.version
    if group.version is None:
        return instance.version >= view.oldest_for_new and admission.can_reserve(instance.version)
    return all(instance.version >= member.needs for member in group.members)


def _give(
    group: WaitingGroup, instance: InstanceView, loads: dict[InstanceId, int], admission: Overlay
) -> Iterator[Route]:
    if group.version is None:
        admission.reserve(instance.version)
    loads[instance.instance] += len(group.members)
    for member in group.members:
        yield Route(member.trajectory, instance.instance)
