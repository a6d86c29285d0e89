"""Give a group to the instance with the fewest running responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.core.ids import InstanceId
from tailrace.core.policy import InstanceView


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoaded:
    """Ties go to the lower instance number, so that a run repeats exactly.

    A group goes to one instance as a whole, even if that overshoots the capacity by a few members: its
    prompt is then prefilled once.
    """

    def choose(self, instances: Sequence[InstanceView]) -> InstanceId | None:
        roomy = [view for view in instances if view.num_running < view.capacity]
        return min(roomy, key=lambda view: (view.num_running, view.instance)).instance if roomy else None
