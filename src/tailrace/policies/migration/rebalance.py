"""Migration policy that takes responses back from overloaded instances.

1. Responses that are queued inside an instance generate nothing: those beyond ``max_waiting`` are taken back.
2. If an instance has more than ``max_gap`` times the throughput of others that may take its work, it keeps an even
   share, and the rest, its youngest responses, is taken back. An idle instance has throughput 0; it counts only if its
   version is new enough for the work.

The responses return to the queue, and all their tokens are prefilled again. Therefore rule 2 applies to one instance at
a time, only if the total throughput of the instances involved rises by ``min_rise``, and not to the same instance again
within ``pause_s``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.policy import FleetView, InstanceView
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    is_planned: ClassVar[bool] = True

    max_waiting: int = 3
    max_gap: float = 5.0
    min_rise: float = 0.1

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        chosen = schedule.coordination
        return cls(max_waiting=chosen.max_waiting, max_gap=chosen.max_gap)

    def choose(self, view: FleetView) -> list[tuple[InstanceId, int]]:
        crowded = [i for i in view.instances if i.num_waiting > self.max_waiting]
        moves = {i.instance: i.num_waiting - self.max_waiting for i in crowded}
        if (even := self._even_out(view)) is not None:
            instance, count = even
            moves[instance] = max(moves.get(instance, 0), count)
        return sorted(moves.items())

    def _even_out(self, view: FleetView) -> tuple[InstanceId, int] | None:
        """Return the fastest instance from which others can take work, and how many responses they take."""
        instances = view.instances
        speeds = {i.instance: view.speed(i) for i in instances}
        by_speed = sorted(instances, key=lambda i: (-speeds[i.instance], i.instance))
        slowest = min(speeds.values(), default=0.0)
        for giver in by_speed:
            speed = speeds[giver.instance]
            if speed <= self.max_gap * slowest or speed == 0:
                return None
            if giver.is_rested:
                takers = [
                    i for i in instances if i.version >= giver.version and speed > self.max_gap * speeds[i.instance]
                ]
                if (count := self._surplus(view, giver, [i for i in takers if not i.num_waiting])) > 0:
                    return giver.instance, count
        return None

    def _surplus(self, view: FleetView, giver: InstanceView, takers: Sequence[InstanceView]) -> int:
        parts = [giver, *takers]
        num_running = sum(i.num_running for i in parts)
        kv_tokens = sum(i.kv_tokens for i in parts)
        share = -(-num_running // len(parts))
        before = sum(view.speed(i) for i in parts)
        # Only instances that get at least one response. With fewer responses than instances the others stay idle.
        num_busy = min(len(parts), num_running)
        after = 0.0
        if num_busy:
            each = view.costs.throughput(kv_tokens=kv_tokens / num_busy, num_running=num_running // num_busy)
            after = num_busy * each
        return giver.num_responses - share if after >= (1 + self.min_rise) * before else 0
