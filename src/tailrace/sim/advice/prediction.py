"""Predicts the seconds per step of a schedule on the work of a recorded run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tailrace.core.schedule import Placement, Schedule
from tailrace.observe.schedules.schedule_account import ScheduleAccount, ScheduleFigures
from tailrace.sim.advice.evidence import Evidence
from tailrace.sim.result import run_schedule
from tailrace.sim.world import Sharing

SEEDS = (0, 1, 2)
"""Draws of the lengths that the run did not see."""
_FEW_DRAWN = 0.01
"""If less than this share of the lengths is drawn, other draws change nothing, and one is enough."""
_EXTREMES = (Sharing(rollout=1.0, training=1.0), Sharing(rollout=2.0, training=2.0))
"""Rollout and training that do not disturb each other at all, and that get half of the devices each."""


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

    If rollout and training never ran at the same time in the recorded run, the range of a schedule in which they do
    also covers what they may cost each other.
    """
    costs = evidence.calibration.costs
    drawn = [_simulate(evidence, schedule, seeds[0], costs.sharing)]
    if drawn[0][1] >= _FEW_DRAWN:
        drawn += [_simulate(evidence, schedule, seed, costs.sharing) for seed in seeds[1:]]
    extremes = [_simulate(evidence, schedule, seeds[0], sharing) for sharing in _unseen(evidence, schedule)]
    seconds = [figures.seconds_per_step for figures, _ in drawn]
    every = seconds + [figures.seconds_per_step for figures, _ in extremes]
    return PredictedSpeed(
        step_s=fmean(seconds),
        least_s=min(every),
        most_s=max(every),
        tokens=fmean(figures.tokens_trained / max(figures.num_steps, 1) for figures, _ in drawn),
        drawn_share=fmean(share for _, share in drawn),
    )


def is_overlap_assumed(evidence: Evidence, schedule: Schedule) -> bool:
    """Whether the schedule lets rollout and training share devices at the same time, which the run never did."""
    is_shared = schedule.placement is Placement.SHARED
    return is_shared and (schedule.overlaps or schedule.streams) and not evidence.calibration.saw_overlap


def _unseen(evidence: Evidence, schedule: Schedule) -> Iterator[Sharing]:
    if is_overlap_assumed(evidence, schedule):
        yield from _EXTREMES


def _simulate(evidence: Evidence, schedule: Schedule, seed: int, sharing: Sharing) -> tuple[ScheduleFigures, float]:
    """Return the figures, and the share of responses for training whose length was drawn."""
    account, lengths = ScheduleAccount(), evidence.work.lengths(seed)
    costs = replace(evidence.calibration.costs, sharing=sharing)
    end, _ = run_schedule(schedule, costs, lengths, order=evidence.work.order, record=account.feed)
    if not end.is_complete:
        raise ValueError(f"the simulated run does not come to its end: {end.reason}")
    trained = {each for each in lengths.asked if each.group.source == schedule.train_source}
    return account.figures(), len(trained & lengths.drawn) / max(len(trained), 1)
