"""The natural lengths of a run's responses, beside the lengths it trains on.

A response is observed once, when it leaves progress: with its full length if it ended (trained or not), as a lower
bound if it was stopped for good before it ended. An interrupted response that goes on is observed later, by its final
length. Each attempt of a response that starts again from its prompt is an observation of its own. A response that used
up its token limit counts as ended: natural lengths are those under the run's limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tailrace.observe.metrics.kaplan_meier import LengthEstimate, kaplan_meier
from tailrace.observe.shared_fold.records import ResponseRecord

WINDOW_STEPS = 10
"""Steps that an estimate covers. Long enough to contain a long round of tail batching."""


@dataclass(slots=True, kw_only=True)
class LengthSample:
    """Training responses that left progress during one step."""

    ended: dict[int, int] = field(default_factory=dict)
    """How many responses ended at each length."""
    censored: dict[int, int] = field(default_factory=dict)
    """How many were stopped before their end, at each length."""

    def add(self, responses: Iterable[ResponseRecord]) -> None:
        for response in responses:
            counts = self.censored if response.finish is None else self.ended
            counts[response.length] = counts.get(response.length, 0) + 1

    @property
    def num_ended(self) -> int:
        return sum(self.ended.values())

    @property
    def num_censored(self) -> int:
        return sum(self.censored.values())


def natural_lengths(samples: Sequence[LengthSample]) -> LengthEstimate | None:
    """The estimate over the newest ``WINDOW_STEPS`` samples; None where they are empty."""
    ended: dict[int, int] = {}
    censored: dict[int, int] = {}
    for sample in samples[-WINDOW_STEPS:]:
        for total, counts in ((ended, sample.ended), (censored, sample.censored)):
            for length, count in counts.items():
                total[length] = total.get(length, 0) + count
    return kaplan_meier(ended, censored) if ended or censored else None


def natural_length_metrics(samples: Sequence[LengthSample]) -> dict[str, float]:
    """Columns of a row of metrics. The counts are those of the newest step, the estimate covers ``WINDOW_STEPS``."""
    estimate, newest = natural_lengths(samples), samples[-1]
    assert estimate is not None, "a step trains at least one response"
    return {
        "response_length/natural_mean": estimate.mean,
        "response_length/natural_p50": estimate.percentile(0.50),
        "response_length/natural_p95": estimate.percentile(0.95),
        "response_length/natural_unseen_ratio": estimate.unseen_share,
        "response_length/num_censored": newest.num_censored,
        "response_length/censored_ratio": newest.num_censored / max(newest.num_ended + newest.num_censored, 1),
    }
