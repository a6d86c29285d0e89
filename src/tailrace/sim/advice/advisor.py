"""Makes the advice: predicts the run itself first, then every schedule that could take its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from tailrace.observe.schedules.advice import Advice, PredictedSchedule, SpeedVerdict
from tailrace.sim.advice.candidates import Candidate, Excluded, Refused, bound_of, candidates, own_candidate
from tailrace.sim.advice.evidence import Evidence
from tailrace.sim.advice.prediction import SEEDS, PredictedSpeed, predict
from tailrace.sim.advice.verdict import sentences, verdict_of
from tailrace.sim.one_size import LEFT_OUT

LEAST_MARGIN = 0.05
"""Smallest difference that counts, however well the run itself is predicted. Costs are fitted to that run, and other
schedules load the devices in other ways: in ``benchmarks/results/advice.json`` their error is larger."""

MOST_ERROR = 0.2
"""If the run itself is predicted with a larger error, nothing is said of other schedules."""

Say = Callable[[str], None]


def make_advice(evidence: Evidence, say: Say, refused: Refused = lambda settings: []) -> Advice:
    """``say`` is called with a line before each simulation. ``refused``: as for ``candidates``."""
    own = own_candidate(evidence.schedule, evidence.config)
    found = list(candidates(evidence.schedule, evidence.config, refused))
    tried = [each for each in found if isinstance(each, Candidate)]
    excluded = [each for each in found if isinstance(each, Excluded)]
    say(f"simulating {own.name}, the schedule of the run")
    itself = predict(evidence, own.schedule)
    recorded_s = evidence.recorded.seconds_per_step
    error = own_error(evidence, itself)
    margin = max(error, LEAST_MARGIN)
    rows: list[tuple[PredictedSchedule, float]] = []
    for number, candidate in enumerate(tried, 1):
        say(f"simulating {number} of {len(tried)}: {candidate.name}")
        try:
            predicted = predict(evidence, candidate.schedule)
        except ValueError as failure:
            excluded.append(Excluded(name=candidate.name, reason=str(failure)))
            continue
        verdict = SpeedVerdict.CANNOT_TELL
        if error <= MOST_ERROR:
            verdict = verdict_of(predicted, own_s=itself.step_s, margin=margin, error=error)
        rows.append((_row(candidate, predicted, verdict), _bound(candidate)))
    rows = [(_row(own, itself, SpeedVerdict.THIS_RUN), _bound(own)), *sorted(rows, key=lambda each: each[0].step_s)]
    calibration = evidence.calibration
    is_assumed = any(calibration.rests_on_assumption(each.schedule) for each in (own, *tried))
    shown = [row for row, _ in rows]
    assumption = calibration.assumption if is_assumed else None
    said = sentences(shown, margin, [bound for _, bound in rows], assumption=assumption)
    return Advice(
        num_recorded=evidence.num_recorded,
        num_steps=evidence.num_steps,
        num_draws=len(SEEDS),
        recorded_s=recorded_s,
        error=error,
        stretch=evidence.calibration.stretch,
        margin=margin,
        rows=tuple(shown),
        excluded=tuple((each.name, each.reason) for each in excluded),
        sentences=(*(_unsure(error) if error > MOST_ERROR else said), *_unseen(evidence), *_left_out(evidence, tried)),
    )


def _unsure(error: float) -> Iterator[str]:
    yield (
        f"The error of the prediction of the run itself is {error:.0%}, more than {MOST_ERROR:.0%}: the simulator does"
        " not know this run well enough to compare schedules."
    )


def _unseen(evidence: Evidence) -> Iterator[str]:
    """Yield what a streamed run alone does not tell."""
    if evidence.schedule.streams and evidence.num_runs == 1:
        yield (
            "This run trains while it generates, so rollout without training was seen only at the ends of rounds, where"
            " few responses are left. Schedules whose rounds begin without training may be predicted too fast: a few"
            " steps of sync on the same machine, given as --with RUN, tell."
        )


def _left_out(evidence: Evidence, tried: Sequence[Candidate]) -> Iterator[str]:
    """Yield what is missing from the simulated schedules."""
    if evidence.has_other_sizes:
        yield LEFT_OUT
    yield from dict.fromkeys(f"{part.line(each.preset)}." for each in tried for part in each.left_out)


def own_error(evidence: Evidence, itself: PredictedSpeed) -> float:
    """Return how far the prediction of the run itself is off, as a share of what was recorded.

    The last step of a calibration multiplies all costs by one factor, so that the run comes out right. The error is at
    least what this factor had to mend.
    """
    recorded_s = evidence.recorded.seconds_per_step
    return max(abs(itself.step_s / recorded_s - 1.0), abs(evidence.calibration.stretch - 1.0))


def _row(candidate: Candidate, predicted: PredictedSpeed, verdict: SpeedVerdict) -> PredictedSchedule:
    return PredictedSchedule(
        name=candidate.name,
        preset=candidate.preset,
        settings=candidate.settings,
        bound=bound_of(candidate.schedule),
        step_s=predicted.step_s,
        least_s=predicted.least_s,
        most_s=predicted.most_s,
        tokens=predicted.tokens,
        drawn_share=predicted.drawn_share,
        verdict=verdict,
    )


def _bound(candidate: Candidate) -> float:
    bound = candidate.schedule.max_staleness
    return math.inf if bound is None else bound
