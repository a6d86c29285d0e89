"""Routing policy that gives each response to the instance with the fewest responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import ClassVar, Self

from tailrace.core.fleet.policy import FleetView, Route, WaitingGroup
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded:
    """Ties go to the lower instance number, so that runs are reproducible.

    The members of a group are spread over instances. If a prompt is hard, all its responses are long, and an instance
    that had all of them would be busy long after the others. The price is a prefill of the prompt on each instance.
    """

    is_planned: ClassVar[bool] = False
    needs_homes: ClassVar[bool] = False

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def route(self, view: FleetView) -> Iterator[Route]:
        tiers, admission = _tiers(view), view.admission.copy()
        for group in view.queue:
            if not any(tiers.values()):
                return
            version, going, chosen = group.version, list[ResponseId](), list[InstanceId]()
            for response, _, needs in group.members:
                if version is None:
                    able = [v for v in tiers if v >= view.oldest_for_new and admission.can_reserve(v)]
                else:
                    able = _able(tiers, group, max(version, needs))
                if (tier := min((v for v in able if tiers[v]), key=lambda v: tiers[v][0], default=None)) is not None:
                    if version is None:
                        version = tier
                        admission.reserve(tier)
                    going.append(response)
                    chosen.append(_take(tiers[tier]))
                elif version is None:
                    return  # all later groups are new too, so they cannot be routed either
            if going:
                yield Route(group.group, going, chosen)


Loads = list[tuple[int, InstanceId, int]]
"""A heap of (number of responses, instance, most responses it may have)."""


def _tiers(view: FleetView) -> dict[Version, Loads]:
    """Return the instances that have room, by version."""
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
