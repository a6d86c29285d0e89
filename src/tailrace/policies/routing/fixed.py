"""Give each new response to the instance with the fewest, and let it stay there.

A response that was interrupted, because its instance pulled new weights, goes on where it was: nothing evens out the
load between instances. If its instance is gone, it goes to the one with the fewest responses and stays there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tailrace.core.fleet.policy import Backlog, Claims, FleetView, Route, WaitingGroup
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.schedule import Schedule
from tailrace.policies.routing.least_loaded import LeastLoaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    is_planned: ClassVar[bool] = False
    needs_homes: ClassVar[bool] = True

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls()

    def route(self, view: FleetView) -> Iterator[Route]:
        instances = {each.instance: each for each in view.instances}
        taken: Counter[InstanceId] = Counter()
        others: list[WaitingGroup] = []
        for group in view.queue:
            going, chosen, settled = list[ResponseId](), list[InstanceId](), set[ResponseId]()
            for (response, _, needs), home in zip(group.members, group.homes, strict=False):
                there = None if home is None else instances.get(home)
                if home is None or (there is not None and there.version < max(needs, group.version or 0)):
                    continue  # an instance that was restarted may be behind
                settled.add(response)
                if there is not None and there.num_responses + taken[home] < there.capacity:
                    taken[home] += 1
                    going.append(response)
                    chosen.append(home)
            if going:
                yield Route(group.group, going, chosen)
            if (homeless := group.without(settled, group.version) if settled else group) is not None:
                others.append(homeless)
        loaded = [replace(i, num_responses=i.num_responses + taken[i.instance]) for i in view.instances]
        yield from LeastLoaded().route(replace(view, instances=loaded, backlog=_Homeless(others, view.backlog)))


class _Homeless:
    """What waits for any instance."""

    def __init__(self, queue: list[WaitingGroup], backlog: Backlog) -> None:
        self._queue, self._backlog = queue, backlog

    def queue(self) -> list[WaitingGroup]:
        return self._queue

    def claims(self) -> Claims:
        return Claims.of(self._queue)

    def running(self, instance: InstanceId) -> tuple[WaitingGroup, ...]:
        return tuple(self._backlog.running(instance))
