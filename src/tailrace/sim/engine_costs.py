"""The costs of a simulated engine, and the load that they depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tailrace.core.costs import step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """Speed and capacity of one engine."""

    k1: float
    """Seconds per step for each token in the KV cache."""
    k2: float
    """Seconds per step for reading the weights: the least that a step's computation takes."""
    k3: float
    """Seconds per step for each running response, if computing takes longer than reading the weights."""
    k4: float
    """Fixed seconds per step."""
    row_s: float = 0.0
    """Seconds per step for each running response, beside reading and computing."""
    prefill_s: float
    """Seconds per prefilled token."""
    prefill_batch_s: float = 0.0
    """Fixed seconds of each prefill batch."""
    prompt_s: float | None = None
    """Seconds per prompt, if the members of a group share its prefill; None: each member prefills it."""
    kv_capacity: int
    """Tokens the KV cache holds."""
    max_running: int = 256
    """Responses generated at the same time."""
    prefill_chunk: int | None = None
    """Most tokens that are prefilled before one step, with each sequence padded to the longest of them. Prompts with
    ``prompt_s`` do not count. None: no limit and no padding."""
    class_s: float = 0.0
    """Seconds per step for each length class in use."""
    length_classes: tuple[int, ...] = ()
    """Row capacities of the KV cache, ascending; empty: attention covers exactly the tokens in the cache."""

    def times(self, factor: float) -> EngineCosts:
        """Return the costs of an engine for which everything takes ``factor`` times as long."""
        names = ("k1", "k2", "k3", "k4", "row_s", "prefill_s", "prefill_batch_s", "class_s")
        prompt_s = None if self.prompt_s is None else factor * self.prompt_s
        return replace(self, **{name: factor * getattr(self, name) for name in names}, prompt_s=prompt_s)

    def step(self, kv: float, n: int, num_classes: int = 0) -> float:
        return step_s(self, kv, n) + self.row_s * n + self.class_s * num_classes

    def steps(self, load: StepLoad, count: int) -> float:
        """Return the seconds of ``count`` steps in a row."""
        one_s = self.step(load.kv, load.num_rows, load.num_classes)
        return count * one_s + self.k1 * load.num_rows * (count * (count - 1) // 2)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What the next step computes."""

    kv: float = 0
    """Tokens attended to; each step adds one per row."""
    num_rows: int = 0
    num_classes: int = 0
    num_steps: float = math.inf
    """Steps until a row changes its length class."""
