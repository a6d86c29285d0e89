"""Compares predictions, and says in words what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailrace.observe.schedules.advice import PredictedSchedule, SpeedVerdict, seconds
from tailrace.sim.advice.prediction import PredictedSpeed

_FEWER_TOKENS = 0.95
"""A schedule that trains less than this part of the tokens of another does less work in a step."""


def verdict_of(predicted: PredictedSpeed, *, own_s: float, margin: float, error: float = 0.0) -> SpeedVerdict:
    """Compare with the predicted ``own_s`` of the run itself.

    A schedule is faster or slower only if that holds in the whole range, widened by the error, by more than the margin.
    """
    if predicted.most_s * (1.0 + error) < own_s * (1.0 - margin):
        return SpeedVerdict.FASTER
    if predicted.least_s * (1.0 - error) > own_s * (1.0 + margin):
        return SpeedVerdict.SLOWER
    return SpeedVerdict.CANNOT_TELL


def sentences(
    rows: Sequence[PredictedSchedule], margin: float, bounds: Sequence[float], *, assumption: str | None
) -> Iterator[str]:
    """Yield the advice. ``rows``: that of the run first, then the others, the fastest first. ``bounds``: the bound of
    each as a number. ``assumption``: what is assumed about rollout and training at the same time."""
    own = rows[0]
    faster = [row for row in rows if row.verdict is SpeedVerdict.FASTER]
    if faster:
        chosen = _chosen(faster, own, margin)
        yield from _recommended(chosen, rows, margin)
        yield from _older_tokens(chosen, faster, own, dict(zip((row.name for row in rows), bounds, strict=True)))
        yield from _shorter_steps(faster[0], chosen, own)
    else:
        yield f"Keep {own.name}: no schedule is predicted to be faster by more than {margin:.1%} in its whole range."
    best = min((own, *faster), key=lambda row: row.token_ms)
    if best.preset != (_chosen(faster, own, margin) if faster else own).preset:
        yield f"For a trained token {best.name} is the fastest: {best.token_ms:.3g} ms."
    if assumption is not None:
        yield (
            f"{assumption}; the ranges go from nothing to half of the devices each. A few steps of sync and of one-step"
            " on the same machine, given as --with RUN, measure it."
        )


def _chosen(faster: Sequence[PredictedSchedule], own: PredictedSchedule, margin: float) -> PredictedSchedule:
    """Return the schedule with the shortest steps that does not buy them with more time for a trained token."""
    fair = [row for row in faster if row.token_ms <= own.token_ms * (1.0 + margin)]
    return (fair or faster)[0]


def _recommended(best: PredictedSchedule, rows: Sequence[PredictedSchedule], margin: float) -> Iterator[str]:
    own = rows[0]
    yield (
        f"Use {best.name}: {seconds(best.step_s)} s per step are predicted, {seconds(own.step_s)} s for the schedule of"
        f" this run ({own.step_s / best.step_s:.2f} times as fast): {best.settings}"
    )
    reach = max(best.step_s * (1.0 + margin), best.most_s)
    others = [row for row in rows[1:] if row.preset != best.preset and row.least_s <= reach]
    if tied := dict.fromkeys(row.preset for row in others):
        yield f"It cannot be told from {_listed(list(tied))}, which may be as fast."


def _older_tokens(
    chosen: PredictedSchedule,
    faster: Sequence[PredictedSchedule],
    own: PredictedSchedule,
    bounds: dict[str, float],
) -> Iterator[str]:
    if bounds[chosen.name] <= bounds[own.name]:
        return
    age = chosen.bound
    older = "There is no limit to the age of its trained tokens" if age == "none" else f"Its bound is {age}"
    kept = next((row for row in faster if bounds[row.name] <= bounds[own.name]), None)
    yield f"{older}; that of this run is {own.bound}. " + (
        f"Within the bound of this run {kept.name} is the fastest, {seconds(kept.step_s)} s: {kept.settings}"
        if kept is not None
        else "Within the bound of this run no schedule is predicted to be faster."
    )


def _shorter_steps(shortest: PredictedSchedule, chosen: PredictedSchedule, own: PredictedSchedule) -> Iterator[str]:
    for row in dict.fromkeys((shortest, chosen)):
        if row.tokens < _FEWER_TOKENS * own.tokens:
            yield (
                f"A step of {row.name} ({seconds(row.step_s)} s) trains {1 - row.tokens / own.tokens:.0%} fewer tokens,"
                f" because short responses are preferred: for a trained token it needs {row.token_ms:.3g} ms, this run"
                f" {own.token_ms:.3g} ms."
            )


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
