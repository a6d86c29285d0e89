"""How long a round takes with a parallel size, estimated from the lengths of earlier rounds.

All responses of an instance advance together, one token per step. Those whose KV cache does not fit wait, so a step of
all of them takes several passes; a response that is preempted is prefilled again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from tailrace.core.costs import step_s
from tailrace.core.fleet.parallelism import ParallelismView, SizeView


class _Stretch(NamedTuple):
    """What an instance has to do while its responses grow by one bin of lengths."""

    num_responses: float
    length: float
    """Tokens of each, prompt included."""
    num_passes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWork:
    """The work of one round."""

    num_responses: int
    active: Sequence[float]
    """Share of the responses that get as far as each bin of lengths."""
    width: float
    """Tokens of a bin."""
    prompt_length: int

    @classmethod
    def of(cls, view: ParallelismView) -> Self:
        return cls(
            num_responses=view.num_launched,
            active=view.active,
            width=view.max_length / max(1, len(view.active)),
            prompt_length=view.prompt_length,
        )

    def fits(self, size: SizeView) -> bool:
        """Whether all responses fit into the KV cache at the same time, at every length they reach."""
        return all(stretch.num_passes <= 1.0 for stretch in self._stretches(size))

    def seconds(self, size: SizeView) -> float:
        """Return the seconds that an instance of this size decodes and prefills."""
        total = running = 0.0
        for number, length, passes in self._stretches(size):
            each = number / passes
            one_s = step_s(size.costs, size.costs.k5 * each * length, each)
            total += self.width * passes * one_s
            total += size.costs.prefill_s * length * max(0.0, min(running, number) - each)
            running = each
        return total

    def _stretches(self, size: SizeView) -> Iterator[_Stretch]:
        own = self.num_responses / max(1, size.num_instances)
        for number, share in enumerate(self.active):
            if share <= 0:
                return
            length = self.prompt_length + (number + 0.5) * self.width
            passes = max(1.0, own * share / size.max_running if size.max_running else 1.0)
            if size.kv_tokens:
                passes = max(passes, size.costs.k5 * own * share * length / size.kv_tokens)
            yield _Stretch(own * share, length, passes)
