"""Predicts the seconds per step of a schedule on the work of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tailrace.core.schedule import Schedule
from tailrace.observe.schedules.schedule_account import ScheduleAccount, ScheduleFigures
from tailrace.sim.advice.evidence import Evidence
from tailrace.sim.result import run_schedule
from tailrace.sim.world import WorldCosts

SEEDS = (0, 1, 2)
"""Draws of the lengths that the run did not see."""
_FEW_DRAWN = 0.01
"""If less than this share of the lengths is drawn, other draws change nothing, and one is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpeed:
    step_s: float
    least_s: float
    most_s: float
    tokens: float
    """Trained in one step."""
    drawn_share: float


def predict(evidence: Evidence, schedule: Schedule, seeds: Sequence[int] = SEEDS) -> PredictedSpeed:
    """Simulate a schedule, once for each draw. ``ValueError`` if the simulated run does not come to its end.

    If the run does not tell what rollout and training cost each other, the range also covers what is assumed about it.
    """
    costs = evidence.calibration.costs
    drawn = [_simulate(evidence, schedule, seeds[0], costs)]
    if drawn[0][1] >= _FEW_DRAWN:
        drawn += [_simulate(evidence, schedule, seed, costs) for seed in seeds[1:]]
    is_assumed = evidence.calibration.rests_on_assumption(schedule)
    extremes = [_simulate(evidence, schedule, seeds[0], each) for each in evidence.extremes if is_assumed]
    seconds = [figures.seconds_per_step for figures, _ in drawn]
    every = seconds + [figures.seconds_per_step for figures, _ in extremes]
    return PredictedSpeed(
        step_s=fmean(seconds),
        least_s=min(every),
        most_s=max(every),
        tokens=fmean(figures.tokens_trained / max(figures.num_steps, 1) for figures, _ in drawn),
        drawn_share=fmean(share for _, share in drawn),
    )


def _simulate(evidence: Evidence, schedule: Schedule, seed: int, costs: WorldCosts) -> tuple[ScheduleFigures, float]:
    """Return the figures, and the share of responses for training whose length was drawn."""
    account, lengths = ScheduleAccount(), evidence.work.lengths(seed)
    end, _ = run_schedule(schedule, costs, lengths, order=evidence.work.order, record=account.feed)
    if not end.is_complete:
        raise ValueError(f"the simulated run does not come to its end: {end.reason}")
    trained = {each for each in lengths.asked if each.group.source == schedule.train_source}
    return account.figures(), len(trained & lengths.drawn) / max(len(trained), 1)
