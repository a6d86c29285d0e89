"""How rollout work is distributed over instances: the strategies, and the numbers they use.

This is part of the schedule, so a journal alone says how work was distributed. The core itself reads only the planning
interval and the capacity of an instance. The rest is for the policies, which ``policies.strategies`` builds from it.
The core knows no strategy by its name: what it must know about one, it asks the policy (``core/fleet/policy.py``).
Only the costs change during a run, when they are measured again: ``Fleet.costs`` holds the current ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.core.costs import NOTHING_KNOWN, CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordination:
    """Settings of the policies that distribute rollout work over instances."""

    routing: str = "vanilla"
    """Name of the strategy that chooses the instance for a queued response."""
    synchronization: str = "vanilla"
    """Name of the strategy that chooses when an instance pulls new weights."""
    migration: str = "vanilla"
    """Name of the strategy that chooses which responses move from one instance to another."""

    costs: CostModel = NOTHING_KNOWN
    """Cost model of an instance at the start of the run."""
    kv_tokens: int = 0
    """Size of an instance's KV cache in tokens; 0: no limit."""
    max_running: int = 0
    """Most responses an instance generates at the same time; 0: no limit."""
    prompt_length: int = 0
    """Mean length of a prompt in tokens."""

    min_gain: float = 0.3
    """Smallest gain for which a response is routed to an instance, as a fraction of the gain on an idle instance. If no
    instance offers it, the response stays queued."""
    max_waiting: int = 3
    """Most responses that may be queued inside an instance. Migration takes the others back."""
    max_gap: float = 5.0
    """Largest ratio of the throughputs of two instances. Above it, migration moves work from the faster to the slower
    one."""
    pause_s: float = 10.0
    """Seconds after a migration during which no more work is taken from the same instance."""
    plan_interval_s: float | None = None
    """Least seconds between two plans; None: chosen from the number of responses, so that planning takes a small share
    of the time (``core/fleet/planning.py``)."""
    is_global: bool = False
    """True: plan only when no instance has an outstanding interrupt or abort. False: plan for the instances that have
    none."""

    def __post_init__(self) -> None:
        for sentence in self._broken():
            raise ValueError(sentence)

    def _broken(self) -> Iterator[str]:
        if not 0 < self.min_gain <= 1:
            yield f"min_gain must be above 0 and at most 1, got {self.min_gain}"
        if self.max_waiting < 0 or self.max_gap < 1:
            yield f"max_waiting must be at least 0 and max_gap at least 1, got {self.max_waiting} and {self.max_gap}"
        for name in ("pause_s", "plan_interval_s", "kv_tokens", "max_running", "prompt_length"):
            if (getattr(self, name) or 0) < 0:
                yield f"{name} must be at least 0, got {getattr(self, name)}"

    def kv_of(self, costs: CostModel, num_tokens: int, num_responses: int) -> float:
        """Return how many tokens of KV cache ``num_responses`` responses take that have ``num_tokens`` tokens in
        total, without their prompts."""
        return costs.k5 * (num_tokens + num_responses * self.prompt_length)

    def fits(self, costs: CostModel, num_tokens: int, num_responses: int) -> bool:
        """Whether an instance can generate all of these responses at the same time."""
        has_room = not self.kv_tokens or self.kv_of(costs, num_tokens, num_responses) <= self.kv_tokens
        return has_room and (not self.max_running or num_responses <= self.max_running)
