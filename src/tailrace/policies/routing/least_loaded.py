"""Give each response to the instance with the fewest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from tailrace.core.ids import InstanceId, TrajectoryId, Version
from tailrace.core.policy import FleetView, Route, WaitingGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded:
    """Ties go to the lower instance number, so that a run repeats exactly.

    The members of a group are spread: a prompt that is hard for one of them is for all, and an instance that had them
    all would be busy long after the others. What it costs is one more prefill of the prompt on each instance.
    """

    def route(self, view: FleetView) -> Iterator[Route]:
        tiers, admission = _tiers(view), view.admission.copy()
        for group in view.queue:
            if not any(tiers.values()):
                return
            version, going, chosen = group.version, list[TrajectoryId](), list[InstanceId]()
            for trajectory, _, needs in group.members:
                if version is None:
                    able = [v for v in tiers if v >= view.oldest_for_new and admission.can_reserve(v)]
                else:
                    able = _able(tiers, group, max(version, needs))
                if (tier := min((v for v in able if tiers[v]), key=lambda v: tiers[v][0], default=None)) is not None:
                    if version is None:
                        version = tier
                        admission.reserve(tier)
                    going.append(trajectory)
                    chosen.append(_take(tiers[tier]))
                elif version is None:
                    return  # what is new has the same claim as what is behind it
            if going:
                yield Route(group.group, going, chosen)


Loads = list[tuple[int, InstanceId, int]]
"""A heap: responses of an instance, its number, and how many it may have."""


def _tiers(view: FleetView) -> dict[Version, Loads]:
    """The instances that have room, by version."""
    tiers: dict[Version, Loads] = {}
    for each in view.instances:
        if each.num_responses < each.capacity:
            tiers.setdefault(each.version, []).append((each.num_responses, each.instance, each.capacity))
    for loads in tiers.values():
        heapify(loads)
    return tiers


def _able(tiers: dict[Version, Loads], group: WaitingGroup, oldest: Version) -> list[Version]:
    return [version for version in tiers if (version == oldest if group.is_exact else version >= oldest)]


def _take(loads: Loads) -> InstanceId:
    load, instance, capacity = loads[0]
    if load + 1 < capacity:
        heapreplace(loads, (load + 1, instance, capacity))
    else:
        heappop(loads)
    return instance
