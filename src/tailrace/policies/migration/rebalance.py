"""Take work from instances that cannot do it now, or that have much more of it than others.

1. Responses that wait inside an instance for room generate nothing: those beyond ``max_waiting`` are taken back.
2. If an instance is more than ``max_gap`` times as fast as some that may take its work, it keeps an even share and
   gives the rest back, its youngest responses. An idle instance is infinitely slow, but counts only if new enough.

What is taken back waits for the routing policy, and all its tokens are prefilled again. So the second kind of move is
made by one instance at a time, only if evening out adds ``min_rise`` to the throughput of those that take part, and not
again from the same instance before it has rested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.core.ids import InstanceId
from tailrace.core.policy import FleetView, InstanceView


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    max_waiting: int = 3
    max_gap: float = 5.0
    min_rise: float = 0.1

    def choose(self, view: FleetView) -> list[tuple[InstanceId, int]]:
        crowded = [i for i in view.instances if i.num_waiting > self.max_waiting]
        moves = {i.instance: i.num_waiting - self.max_waiting for i in crowded}
        if (even := self._even_out(view)) is not None:
            instance, count = even
            moves[instance] = max(moves.get(instance, 0), count)
        return sorted(moves.items())

    def _even_out(self, view: FleetView) -> tuple[InstanceId, int] | None:
        """The fastest instance that has others to give work to, and how much of it."""
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
        # Those that get a share of one or more; with less work than instances the others stay idle.
        num_busy = min(len(parts), num_running)
        after = 0.0
        if num_busy:
            each = view.costs.throughput(kv_tokens=kv_tokens / num_busy, num_running=num_running // num_busy)
            after = num_busy * each
        return giver.num_responses - share if after >= (1 + self.min_rise) * before else 0
