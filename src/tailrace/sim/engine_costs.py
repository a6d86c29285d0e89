"""What a simulated rollout instance takes for its steps: the costs of one engine, and the load they depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailrace.core.costs import step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    k1: float
    """Seconds per step and token held in the KV cache."""
    k2: float
    """Least seconds per step for reading the weights."""
    k3: float
    """Seconds per step and running response, where computing outweighs reading the weights."""
    k4: float
    """Seconds per step, always."""
    prefill_s: float
    """Seconds per prefilled token."""
    prefill_batch_s: float = 0.0
    """Seconds before a step for which anything is prefilled, beside those of its tokens."""
    prompt_s: float | None = None
    """Seconds per prompt that the members of a group share; None: each member prefills it for itself."""
    kv_capacity: int
    """Tokens the KV cache holds."""
    max_running: int = 256
    """Responses generated at the same time."""
    prefill_chunk: int | None = None
    """Most tokens that are prefilled before one step, each sequence padded to the longest of them; prompts with
    ``prompt_s`` do not count. None: all at once, and nothing is padded."""
    class_s: float = 0.0
    """Seconds per step and length class that has rows."""
    length_classes: tuple[int, ...] = ()
    """Capacities of the rows that the KV cache is kept in, ascending; none: steps attend to what is held."""

    def times(self, factor: float) -> EngineCosts:
        """Of an engine that takes so many times as long for everything."""
        names = ("k1", "k2", "k3", "k4", "prefill_s", "prefill_batch_s", "class_s")
        prompt_s = None if self.prompt_s is None else factor * self.prompt_s
        return replace(self, **{name: factor * getattr(self, name) for name in names}, prompt_s=prompt_s)

    def step(self, kv: float, n: int, num_classes: int = 0) -> float:
        return step_s(self, kv, n) + self.class_s * num_classes

    def steps(self, load: Load, count: int) -> float:
        """Seconds of ``count`` steps in a row."""
        one_s = self.step(load.kv, load.num_rows, load.num_classes)
        return count * one_s + self.k1 * load.num_rows * (count * (count - 1) // 2)


@dataclass(frozen=True, slots=True)
class Load:
    """What the next step computes."""

    kv: float = 0
    """Tokens attended to; each step adds one per row."""
    num_rows: int = 0
    num_classes: int = 0
    num_steps: float = math.inf
    """Until a row changes its length class."""
