"""The interface of policies that lend instances to training for the rest of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from tailrace.core.costs import CostModel
from tailrace.core.ids import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceView:
    """A place that may be lent."""

    instances: tuple[InstanceId, ...]
    num_tokens: int
    """Tokens of the responses that would have to move to other instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingView:
    """What a policy sees."""

    progress: float
    """Part of the batch that is complete."""
    places: Sequence[PlaceView]
    num_instances: int
    ready: frozenset[InstanceId]
    """Instances that accept work."""
    final_lengths: Sequence[float]
    """Expected final length of every unfinished response, prompt not included; empty unless the policy reads it."""
    costs: CostModel
    kv_tokens: int
    """Size of an instance's KV cache in tokens; 0: no limit."""
    max_running: int
    """Most responses an instance generates at the same time; 0: no limit."""
    prompt_length: int

    def ready_without(self, lent: Sequence[InstanceId]) -> int:
        """Return how many instances would be left that accept work."""
        return len(self.ready - set(lent))


class ScalingPolicy(Protocol):
    """Chooses the instances that are lent now: those of whole places."""

    lends: ClassVar[bool]
    """Whether it ever lends any."""
    needs_lengths: ClassVar[bool]
    """Whether it reads ``final_lengths``. If not, no lengths are kept, and the view has none."""

    def choose(self, view: ScalingView) -> Sequence[InstanceId]: ...
