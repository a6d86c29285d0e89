"""One simulation of StaleFlow's setting: what may be different in it, and what is measured in the middle of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from simulated_runs import Range, grid, load

from tailrace.core import commands as do
from tailrace.core.events import RolloutReported, StepTrained
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario

SCENARIO = "staleflow_30b_a3b"
CAP = 20480


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which steps of a run are measured."""

    steps: int = 30
    first: int = 8
    """Steps left out at the start, which nothing overlaps with."""
    last: int = 6
    """Steps left out at the end, beside which no work for later steps runs."""

    @property
    def numbers(self) -> range:
        return range(self.first, self.steps - self.last)


WINDOW = Window()
LONG_WINDOW = Window(steps=100, first=40)
"""The window of `async-cap`: it trains short responses first, and takes long to become steady."""
TINY_WINDOW = Window(steps=6, first=2, last=2)
"""Only to see that everything runs."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What schedules are compared on."""

    lengths: str = ""
    """An entry of the grid; empty: the scenario's own."""
    cap: int = CAP
    scale: int = 2
    """Times an eighth of the paper's batch and devices."""
    batch: int = 0
    """Prompts per step, if not those of the scenario."""

    @property
    def name(self) -> str:
        return f"{self.lengths or 'paper'}/{self.cap // 1024}k"

    def scenario(self, schedule: str, split: float, steps: int) -> Scenario:
        scenario = load(SCENARIO)
        if self.lengths:
            entries = (*grid().long_tailed, *grid().not_long_tailed)
            scenario = scenario.with_lengths(next(e for e in entries if e.name == self.lengths), self.cap)
        else:
            lengths = scenario.lengths.model_copy(update={"max_response_length": self.cap})
            scenario = scenario.model_copy(update={"lengths": lengths})
        scenario = scenario.colocated() if schedule == "sync" else scenario.with_split(split)
        scenario = scenario.scaled(self.scale).with_steps(steps)
        if self.batch:
            chosen = scenario.schedule.model_copy(update={"rollout_batch_size": self.batch})
            scenario = scenario.model_copy(update={"schedule": chosen})
        return scenario


@dataclass(frozen=True, kw_only=True)
class Speed:
    """One simulation, in the steps of its window."""

    tokens_per_s: float
    """Trained."""
    halves: tuple[float, float]
    """The same in the first and in the second half of the window."""
    step_s: float
    split: float
    mean_length: float
    staleness: dict[int, int]
    """Groups by staleness."""
    trainer_idle: float


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Simulations that differ in their lengths alone: one per seed."""

    speeds: tuple[Speed, ...]

    def __getitem__(self, seed: int) -> Speed:
        return self.speeds[seed]

    def __len__(self) -> int:
        return len(self.speeds)

    def mean(self, name: str) -> float:
        return fmean(getattr(speed, name) for speed in self.speeds)

    @property
    def tokens_per_s(self) -> float:
        return self.mean("tokens_per_s")

    @property
    def staleness(self) -> Counter[int]:
        return sum((Counter(speed.staleness) for speed in self.speeds), Counter[int]())

    @property
    def drift(self) -> float:
        """Speed in the second half of the window over that in the first, mean over the seeds: near 1, it is steady."""
        return fmean(speed.halves[1] for speed in self.speeds) / fmean(speed.halves[0] for speed in self.speeds)

    def share_at(self, bound: int) -> float:
        return self.staleness[bound] / self.staleness.total()

    def num_above(self, bound: int) -> int:
        return sum(count for staleness, count in self.staleness.items() if staleness > bound)

    def to_dict(self) -> dict[str, Any]:
        speeds = [speed.tokens_per_s for speed in self.speeds]
        return {
            "tokens_per_s": Range.over(speeds).to_dict(),
            "step_s": round(self.mean("step_s"), 1),
            "split": self.speeds[0].split,
            "mean_length": round(self.mean("mean_length")),
            "trainer_idle": round(self.mean("trainer_idle"), 3),
            "most_stale": max(self.staleness),
            "drift": round(self.drift, 3),
        }


@dataclass
class Batches:
    """What was trained, when: a fold over a journal."""

    lengths: dict[ResponseId, int] = field(default_factory=dict)
    steps: list[do.Accumulate] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def feed(self, entry: Entry) -> None:
        if isinstance(entry.event, RolloutReported):
            self.lengths |= {each.response: each.length for each in entry.event.finished}
        elif isinstance(entry.event, StepTrained):
            self.ended.append(entry.now)
        for command in entry.commands:
            if isinstance(command, do.Accumulate):
                self.steps.append(command)
                self.begun.append(entry.now)

    def speed(self, split: float, window: Window) -> Speed:
        numbers = window.numbers
        middle = numbers[len(numbers) // 2]
        took_s = self._took_s(numbers)
        lengths = [self.lengths[r] for n in numbers for r in self.steps[n].responses]
        return Speed(
            tokens_per_s=self._rate(numbers),
            halves=(self._rate(range(numbers[0], middle)), self._rate(range(middle, numbers[-1] + 1))),
            step_s=took_s / len(numbers),
            split=split,
            mean_length=fmean(lengths),
            staleness=dict(sum((_staleness(self.steps[n]) for n in numbers), Counter[int]())),
            trainer_idle=sum(self.begun[n] - self.ended[n - 1] for n in numbers) / took_s,
        )

    def _took_s(self, numbers: range) -> float:
        return self.ended[numbers[-1]] - self.ended[numbers[0] - 1]

    def _rate(self, numbers: range) -> float:
        """Tokens trained per second in these steps."""
        return sum(self.lengths[r] for n in numbers for r in self.steps[n].responses) / self._took_s(numbers)


def _staleness(step: do.Accumulate) -> Counter[int]:
    """Of a group: that of its stalest response."""
    oldest: dict[GroupId, int] = {}
    for response, version in zip(step.responses, step.oldest, strict=True):
        oldest[response.group] = min(version, oldest.get(response.group, version))
    return Counter(step.version - version for version in oldest.values())


Job = tuple[Setting, str, float, int, Window]
"""Setting, schedule, split, seed, and the steps that are measured."""


def measured(job: Job) -> Speed:
    setting, schedule, split, seed, window = job
    scenario, batches = setting.scenario(schedule, split, window.steps).with_seed(seed), Batches()
    result = simulate(scenario, schedule, record=batches.feed)
    if not result.is_complete:
        raise RuntimeError(f"{job} did not come to its end: {result.reason}")
    return batches.speed(split, window)
