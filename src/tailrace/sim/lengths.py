"""How long responses are: a pure function of (seed, group, member, attempt), the same under every schedule.

So schedules are compared on the same draws, whatever order they launch them in. A draw is the natural length; a
budget cuts it (and the response then ends with LENGTH).

    lognormal   ln L ~ N(mu_prompt, within),  mu_prompt ~ N(ln median, between)
    mixture     a share of the prompts ("long") has another median: bimodal or long-tailed
    normal, uniform, constant   distributions without a tail
    trace       the lengths of a recorded run; prompt i takes row i modulo the rows, member j entry j modulo the entries
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Literal, Protocol

from tailrace.core.ids import GroupId, ResponseId
from tailrace.observe.prompts import length_trace
from tailrace.observe.prompts.length_trace import LengthTrace

_NORMAL = NormalDist()
_SCALE = 1 << 53


def uniforms(count: int, *key: object) -> list[float]:
    """Return up to eight numbers strictly between 0 and 1. They depend only on the key and are the same everywhere."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * count).digest()
    return [((int.from_bytes(digest[8 * i : 8 * i + 8], "big") >> 11) + 0.5) / _SCALE for i in range(count)]


def uniform(*key: object) -> float:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> 11) + 0.5) / _SCALE


@lru_cache(maxsize=4096)
def of_prompt(count: int, *key: object) -> list[float]:
    """Return ``uniforms`` of a key that all members of a group share. Cached, because each member needs them."""
    return uniforms(count, *key)


def to_normal(position: float) -> float:
    """Return the quantile of the standard normal distribution at ``position``."""
    return _NORMAL.inv_cdf(position)


class Lengths(Protocol):
    def draw(self, response: ResponseId, version: int) -> int:
        """Return the natural length in tokens, at least 1, of a response that starts with ``version``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A token budget that grows with the version."""

    first: int
    """Budget of responses that begin with the first version."""
    per_step: int
    """Tokens by which it grows with each version."""
    most: int

    def budget(self, version: int) -> int:
        return min(self.most, self.first + self.per_step * version)


@dataclass(frozen=True, slots=True)
class RampedLengths:
    """Lengths that grow in proportion to a budget. ``full``: those at the largest budget."""

    full: Lengths
    ramp: Ramp

    def draw(self, response: ResponseId, version: int) -> int:
        return max(1, round(self.full.draw(response, version) * self.ramp.budget(version) / self.ramp.most))


Kind = Literal["lognormal", "normal", "uniform", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLengths:
    seed: int
    kind: Kind = "lognormal"
    median: float
    """For ``normal`` the mean; for ``uniform`` the middle of the range."""
    between: float = 0.0
    """Spread between prompts. Lognormal: of ln L. Normal and uniform: a share of the median."""
    within: float = 0.0
    """Spread between the responses of one prompt, in the same unit."""
    long_share: float = 0.0
    """Share of the prompts whose median is ``long_median``."""
    long_median: float = 0.0
    drift: float = 0.0
    """Growth of all lengths per version: 0.01 is one percent per optimizer step."""

    def draw(self, response: ResponseId, version: int) -> int:
        group = response.group
        length = self._spread(self._median(group), group, response) * (1.0 + self.drift) ** version
        return max(1, round(length))

    def _median(self, group: GroupId) -> float:
        if not self.long_share:
            return self.median
        [position] = of_prompt(1, self.seed, "long", group.source, group.prompt)
        return self.long_median if position < self.long_share else self.median

    def _spread(self, median: float, group: GroupId, response_id: ResponseId) -> float:
        # The draw of the prompt does not depend on the epoch: a hard prompt is hard in every pass.
        [prompt] = of_prompt(1, self.seed, "prompt", group.source, group.prompt)
        response = (self.seed, "response", *response_id.group, response_id.member, response_id.attempt)
        match self.kind:
            case "constant":
                return median
            case "uniform":
                shift = self.between * (2 * prompt - 1) + self.within * (2 * uniform(*response) - 1)
                return median * (1 + shift)
            case "normal":
                return median * (1 + self._shift(prompt, uniform(*response)))
            case "lognormal":
                return median * math.exp(self._shift(prompt, uniform(*response)))

    def _shift(self, prompt: float, response: float) -> float:
        return self.between * to_normal(prompt) + self.within * to_normal(response)


class TraceLengths:
    """Recorded lengths. Lengths that reached the token budget of the recorded run are censored.

    If the simulation has a larger budget, the rest of a censored response is drawn from an exponential distribution
    with mean ``cap``. This is an assumption; ``num_censored`` of ``num_recorded`` lengths depend on it.
    """

    def __init__(self, trace: LengthTrace, *, cap: int | None, seed: int) -> None:
        rows = [prompt.lengths for prompt in trace.prompts]
        if not rows or not all(rows):
            raise ValueError("the trace is empty or has a prompt without lengths; every prompt needs at least one")
        self._trace, self._seed = trace, seed
        self.cap = max(max(row) for row in rows) if cap is None else cap
        self.num_recorded = sum(len(row) for row in rows)
        self.num_censored = sum(length >= self.cap for row in rows for length in row)

    def draw(self, response: ResponseId, version: int) -> int:
        length = self._trace.length_of(response)
        if length < self.cap:
            return max(1, length)
        key = (self._seed, "censored", *response.group, response.member, response.attempt)
        return self.cap + math.ceil(-self.cap * math.log(uniform(*key)))


class RecordedLengths:
    """The recorded length of each response in some journals. For a response that is in none of them, the length of
    another response of the same prompt or source is drawn.

    If the simulation has a larger token budget, responses that reached their budget continue as in ``TraceLengths``.
    """

    def __init__(self, journals: Sequence[Mapping[ResponseId, tuple[int, bool]]], *, seed: int) -> None:
        """``journals``: for each journal, the length of each response and whether its budget ended it. If several
        journals have a response, the first counts."""
        if not any(journals):
            raise ValueError("no response of the journal ended by itself")
        self._seed = seed
        self._ended = {each: found for ended in reversed(journals) for each, found in ended.items()}
        self._by_prompt: dict[tuple[str, int], list[tuple[int, bool]]] = {}
        self._by_source: dict[str, list[tuple[int, bool]]] = {}
        for ended in journals:
            for each, found in ended.items():
                self._by_prompt.setdefault((each.group.source, each.group.prompt), []).append(found)
                self._by_source.setdefault(each.group.source, []).append(found)
        self.num_recorded, self.num_censored = len(self._ended), sum(is_cut for _, is_cut in self._ended.values())
        self.drawn: set[ResponseId] = set()
        """Responses whose length is in no journal."""
        self.asked: set[ResponseId] = set()
        """All responses that were simulated."""

    def draw(self, response: ResponseId, version: int) -> int:
        key = (self._seed, "recorded", *response.group, response.member, response.attempt)
        self.asked.add(response)
        if response not in self._ended or self._ended[response][1]:
            self.drawn.add(response)
        if (found := self._ended.get(response)) is None:
            candidates = self._candidates(response.group)
            found = candidates[int(uniform(*key) * len(candidates))]
        length, is_cut = found
        return max(1, length) if not is_cut else length + math.ceil(-length * math.log(uniform(*key, "censored")))

    def _candidates(self, group: GroupId) -> list[tuple[int, bool]]:
        same_source = self._by_source.get(group.source) or list(self._ended.values())
        return self._by_prompt.get((group.source, group.prompt), same_source)


def read_trace(path: Path, *, cap: int | None, seed: int) -> TraceLengths:
    """Read a trace: a file of ``tailrace rollout``, or a JSON list of lists of lengths. ``cap``: token budget of the
    recorded run, if the file does not say."""
    trace = length_trace.read(path)
    return TraceLengths(trace, cap=cap or trace.cap, seed=seed)
