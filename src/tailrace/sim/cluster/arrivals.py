"""When jobs are submitted, and what they are. The same seed gives the same jobs under every policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from random import Random


class JobArrivals(StrEnum):
    BACKLOG = "backlog"
    """All at second 0."""
    POISSON = "poisson"
    """One after the other, with exponential gaps."""
    BURSTY = "bursty"
    """In bursts of several jobs, with exponential gaps between bursts."""


def submission_times(
    kind: JobArrivals, count: int, *, rate_per_s: float, burst_size: int, draw: Random
) -> Iterator[float]:
    """Yield one time for each job. ``rate_per_s``: jobs per second in the mean."""
    now = 0.0
    size = burst_size if kind is JobArrivals.BURSTY else 1
    for index in range(count):
        if kind is not JobArrivals.BACKLOG and index and index % size == 0:
            now += draw.expovariate(rate_per_s / size)
        yield now


def mixed_models(mix: Mapping[str, float], count: int, draw: Random) -> list[str]:
    """Return the models of all jobs in random order. Their numbers follow the mix as nearly as whole jobs allow."""
    total = sum(mix.values())
    exact = {model: count * share / total for model, share in mix.items()}
    counts = {model: int(number) for model, number in exact.items()}
    for model in sorted(exact, key=lambda model: counts[model] - exact[model])[: count - sum(counts.values())]:
        counts[model] += 1
    models = [model for model, number in counts.items() for _ in range(number)]
    draw.shuffle(models)
    return models
