"""How rollout work is steered between instances: which strategies, and the numbers they weigh.

Part of the schedule, so a journal alone says how its choices were made. The core reads of this only how often to plan
and how much an instance holds; the rest is for the policies that are made from it (``policies.strategies``). Only the
costs may change while a run goes on, when they are measured again: the state has those that hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tailrace.core.costs import NOTHING_KNOWN, CostModel


class Strategy(Enum):
    VANILLA = "vanilla"
    """Routing: to the instance with the fewest responses. Synchronization: as soon as a version is published.
    Migration: none."""
    THROUGHPUT = "throughput"
    """By what a choice is expected to add to tokens per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    routing: Strategy = Strategy.VANILLA
    synchronization: Strategy = Strategy.VANILLA
    migration: Strategy = Strategy.VANILLA

    costs: CostModel = NOTHING_KNOWN
    """Of an instance, as they are known when the run starts."""
    kv_tokens: int = 0
    """KV cache of an instance in tokens; 0: no limit."""
    max_running: int = 0
    """Responses an instance generates at the same time; 0: no limit."""
    prompt_length: int = 0
    """Tokens of a usual prompt."""

    min_gain: float = 0.3
    """Least gain of a routing choice, as a part of what the response would add to an idle instance."""
    max_waiting: int = 3
    """Responses that may wait for room inside an instance before the rest is taken away."""
    max_gap: float = 5.0
    """How many times as fast as another an instance may be before work moves between them."""
    pause_s: float = 10.0
    """An instance that gave work away is left alone for so long."""
    plan_interval_s: float | None = None
    """Least seconds between two plans; None: as long as planning for so many responses takes, and who waits for it
    (``steering``)."""
    is_global: bool = False
    """Plan only while no instance owes an answer, rather than for those that owe none."""

    def __post_init__(self) -> None:
        for sentence in self._broken():
            raise ValueError(sentence)

    def _broken(self) -> Iterator[str]:
        if not 0 < self.min_gain <= 1:
            yield f"min_gain is a part of the ideal gain, above 0 and at most 1, got {self.min_gain}"
        if self.max_waiting < 0 or self.max_gap < 1:
            yield f"needs max_waiting >= 0 and max_gap >= 1, got {self.max_waiting} and {self.max_gap}"
        for name in ("pause_s", "plan_interval_s", "kv_tokens", "max_running", "prompt_length"):
            if (getattr(self, name) or 0) < 0:
                yield f"{name} must be at least 0, got {getattr(self, name)}"

    @property
    def plans(self) -> bool:
        """Whether any choice is made in plans, rather than at every event."""
        return Strategy.THROUGHPUT in (self.routing, self.synchronization, self.migration)

    def kv_of(self, costs: CostModel, num_tokens: int, num_responses: int) -> float:
        """Tokens of the cache that so many responses hold, which have so many tokens together."""
        return costs.k5 * (num_tokens + num_responses * self.prompt_length)

    def fits(self, costs: CostModel, num_tokens: int, num_responses: int) -> bool:
        """Whether an instance can generate them all at the same time."""
        has_room = not self.kv_tokens or self.kv_of(costs, num_tokens, num_responses) <= self.kv_tokens
        return has_room and (not self.max_running or num_responses <= self.max_running)
