"""One simulation: a scenario, perhaps on other lengths or scaled up, under one schedule."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from tailrace.observe.schedules.schedule_account import ScheduleFigures
from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_file import load_length_grid, load_scenario
from tailrace.sim.scenario_sections import LengthGrid

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"
Figures = ScheduleFigures
_Wanted, _Found = TypeVar("_Wanted"), TypeVar("_Found")


@dataclass(frozen=True, kw_only=True)
class Range:
    """One figure over several seeds."""

    mean: float
    least: float
    most: float

    @classmethod
    def over(cls, figures: Sequence[float]) -> Range:
        return cls(mean=fmean(figures), least=min(figures), most=max(figures))

    def to_dict(self) -> dict[str, float]:
        digits = 3 if self.most < 100 else 0
        return {"mean": round(self.mean, digits), "min": round(self.least, digits), "max": round(self.most, digits)}


@dataclass(frozen=True, kw_only=True)
class Run:
    scenario: str
    schedule: str
    steps: int
    lengths: str = ""
    """An entry of the grid; empty: the scenario's own."""
    cap: int = 0
    scale: int = 1
    """Times the batch and every device."""
    seed: int | None = None
    """Of the lengths, if not the scenario's."""

    def work(self) -> int:
        """Roughly what it costs to simulate."""
        chosen = load(self.scenario).schedule
        return self.steps * self.scale * chosen.rollout_batch_size * chosen.n_samples_per_prompt


@cache
def load(name: str) -> Scenario:
    return load_scenario(SCENARIOS / f"{name}.toml")


@cache
def grid() -> LengthGrid:
    return load_length_grid(SCENARIOS / "length_grid.toml")


def simulated(run: Run) -> Figures:
    scenario = load(run.scenario).with_steps(run.steps)
    if run.lengths:
        entry = next(entry for entry in (*grid().long_tailed, *grid().not_long_tailed) if entry.name == run.lengths)
        scenario = scenario.with_lengths(entry, run.cap)
    if run.seed is not None:
        scenario = scenario.with_seed(run.seed)
    result = simulate(scenario.scaled(run.scale), run.schedule)
    if not result.is_complete:
        raise RuntimeError(f"{run} did not come to its end: {result.reason}")
    return result.figures


def speed_up(figures: Figures, baseline: Figures) -> float:
    """In optimizer steps per second."""
    return baseline.seconds_per_step / figures.seconds_per_step


def rollout_s(figures: Figures) -> float:
    """Seconds per step in which responses are generated."""
    return figures.tokens_generated / figures.rollout_tokens_per_s / figures.num_steps


def in_processes(
    simulated: Callable[[_Wanted], _Found], wanted: Sequence[_Wanted], told: Sequence[_Wanted], *, jobs: int
) -> dict[_Wanted, _Found]:
    """Simulate what is told and return the results by what was wanted, one for one; progress goes to stderr."""
    began, found = time.monotonic(), dict[_Wanted, _Found]()
    with ProcessPoolExecutor(jobs) as pool:
        for run, outcome in zip(wanted, pool.map(simulated, told), strict=True):
            found[run] = outcome
            if len(found) % 20 == 0 or len(found) == len(wanted):
                took = time.monotonic() - began
                print(f"{len(found)} of {len(wanted)} simulations, {took:.0f} s", file=sys.stderr, flush=True)
    return found
