"""The cost model: how fast an instance generates, as a function of its load. Throughput-oriented strategies use it.

A decode step adds one token to each of ``n`` running responses and reads the ``kv`` tokens they hold:

    step       = k1 * kv + max(k2, k3 * n) + k4          seconds
    throughput = n / step                                tokens per second

The KV cache is counted in tokens, not in bytes. The coefficients belong to one model on one device: they are measured,
never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StepCoefficients(Protocol):
    """The coefficients of a decode step."""

    @property
    def k1(self) -> float: ...
    @property
    def k2(self) -> float: ...
    @property
    def k3(self) -> float: ...
    @property
    def k4(self) -> float: ...


def step_s(k: StepCoefficients, kv_tokens: float, num_running: float) -> float:
    """Return the seconds of one decode step."""
    reading, computing = k.k2, k.k3 * num_running  # no call of max(): a plan calls this tens of thousands of times
    return k.k1 * kv_tokens + (computing if computing > reading else reading) + k.k4


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillWork:
    """How much an engine has prefilled since it started, and how long that took."""

    num_batches: int
    num_tokens: int
    """Prefilled tokens, padding included."""
    seconds: float


class PrefillChunk:
    """Sequences that are prefilled together before one step. Each is padded to the longest of them."""

    def __init__(self, limit: int | None) -> None:
        """``limit``: most tokens, padding included; None: no limit and no padding."""
        self._limit = limit
        self._num_parts = self._longest = 0
        self.num_tokens = 0
        """Tokens to compute, padding included."""

    def take(self, tokens: int) -> bool:
        """Add a sequence if there is room for it; return whether there was. The first sequence always fits."""
        if self._limit is None or not tokens:
            self.num_tokens += tokens
            return True
        longest = max(self._longest, tokens)
        padded = (self._num_parts + 1) * longest
        if self._num_parts and padded > self._limit:
            return False
        self._num_parts, self._longest, self.num_tokens = self._num_parts + 1, longest, padded
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Measured speed of one model on one device."""

    k1: float
    """Seconds per step for each token in the KV cache."""
    k2: float
    """Seconds per step for reading the weights: the least that a step's computation takes."""
    k3: float
    """Seconds per step for each running response, if computing takes longer than reading the weights."""
    k4: float
    """Fixed seconds per step."""
    k5: float = 1.0
    """Tokens of KV cache that one token of a response occupies. Above 1 if the cache is allocated in blocks."""
    prefill_s: float = 0.0
    """Seconds per prefilled token. No strategy uses it. Costs that are measured during a run include prefill."""
    most_running: int | None = None
    """Most responses at the same time in what the costs were fitted to: what one more adds is only guessed; None: there
    is no such limit."""

    def __post_init__(self) -> None:
        if min(self.k1, self.k2, self.k3, self.k4, self.prefill_s) < 0 or self.k2 + self.k4 <= 0 or self.k5 <= 0:
            raise ValueError(
                f"k1 to k4 and prefill_s must be at least 0, a step must take time and k5 must be above 0, got {self}"
            )

    def step_s(self, *, kv_tokens: float, num_running: int) -> float:
        """Return the seconds of one decode step."""
        return step_s(self, kv_tokens, num_running)

    def throughput(self, *, kv_tokens: float, num_running: int) -> float:
        """Return the tokens per second."""
        return num_running / step_s(self, kv_tokens, num_running)

    def gain(
        self, *, length: float, kv_tokens: float, num_running: int, num_waiting: int = 0, kv_budget: float | None = None
    ) -> float:
        """Return the tokens per second that one more response adds, of ``length`` tokens with its prompt; 0 if the
        instance has no room for it."""
        grown = kv_tokens + self.k5 * length
        if num_waiting or (kv_budget is not None and grown > kv_budget):
            return 0.0
        before = num_running / step_s(self, kv_tokens, num_running)
        return (num_running + 1) / step_s(self, grown, num_running + 1) - before

    def is_guess(self, num_running: int) -> bool:
        """Whether nothing was measured of an instance with one more response than these."""
        return self.most_running is not None and num_running >= self.most_running

    def ideal_gain(self, *, length: float) -> float:
        """Return the tokens per second that the response adds to an idle instance, the most it can add anywhere."""
        return 1 / step_s(self, self.k5 * length, 1)


NOTHING_KNOWN = CostModel(k1=0.0, k2=0.0, k3=0.0, k4=1.0)
"""Cost model before anything is measured: every response that fits adds the same."""
