"""KV peak: instances are lent when all unfinished responses, at their expected final lengths, fit into the KV cache of
the others (RollPacker, section 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tailrace.core.fleet.scaling import ScalingView
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Schedule
from tailrace.policies.scaling.halves import least_busy


@dataclass(frozen=True, slots=True)
class LentAtKvPeak:
    lends: ClassVar[bool] = True
    needs_lengths: ClassVar[bool] = True
    share: float

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        return cls(schedule.lending.share)

    def choose(self, view: ScalingView) -> Sequence[InstanceId]:
        lent = least_busy(view, self.share)
        return lent if lent and self._fit(view, view.ready_without(lent)) else ()

    def _fit(self, view: ScalingView, num_left: int) -> bool:
        """Whether ``num_left`` instances can generate everything at once, to its end."""
        count = len(view.final_lengths)
        peak = view.costs.k5 * (sum(view.final_lengths) + count * view.prompt_length)
        has_room = not view.kv_tokens or peak <= num_left * view.kv_tokens
        return has_room and (not view.max_running or count <= num_left * view.max_running)
