"""One simulation of StaleFlow's setting: what may be different in it, and what is measured in the middle of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from simulated_runs import grid, load

from tailrace.core import commands as do
from tailrace.core.events import RolloutReported, StepTrained
from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.core.journal import Entry
from tailrace.sim.result import simulate
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_sections import EngineSection

SCENARIO = "staleflow_30b_a3b"
CAP = 20480
STEPS, FIRST, LAST = 30, 8, 6
"""Steps simulated; those left out at the start, which nothing overlaps with; those left out at the end, beside which no
work for later steps runs."""


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
    is_ideal: bool = False
    """Instances pull, prefill and report in no time, hold any number of responses, and generate each as fast as one
    alone: what is left are the trainer and the longest responses."""

    @property
    def name(self) -> str:
        return f"{self.lengths or 'paper'}/{self.cap // 1024}k"

    def scenario(self, schedule: str, split: float) -> Scenario:
        scenario = load(SCENARIO)
        if self.lengths:
            entries = (*grid().long_tailed, *grid().not_long_tailed)
            scenario = scenario.with_lengths(next(e for e in entries if e.name == self.lengths), self.cap)
        else:
            lengths = scenario.lengths.model_copy(update={"max_response_length": self.cap})
            scenario = scenario.model_copy(update={"lengths": lengths})
        scenario = scenario.colocated() if schedule == "sync" else scenario.with_split(split)
        scenario = scenario.scaled(self.scale).with_steps(STEPS)
        if self.batch:
            chosen = scenario.schedule.model_copy(update={"rollout_batch_size": self.batch})
            scenario = scenario.model_copy(update={"schedule": chosen})
        return scenario.model_copy(update={"engine": _ideal(scenario.engine)}) if self.is_ideal else scenario


def _ideal(engine: EngineSection) -> EngineSection:
    free = dict.fromkeys(("k1", "k3", "prefill_s", "pull_s", "report_s", "plan_interval_s"), 0.0)
    return engine.model_copy(update=free | {"kv_capacity": 10**9, "max_running": 10**6})


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of the steps in the middle."""

    tokens_per_s: float
    """Trained."""
    step_s: float
    split: float
    mean_length: float
    staleness: dict[int, int]
    """Groups by staleness."""
    trainer_idle: float

    @classmethod
    def mean(cls, speeds: Sequence[Speed]) -> Speed:
        """Of simulations that differ in their lengths alone; groups are added up."""
        names = ("tokens_per_s", "step_s", "mean_length", "trainer_idle")
        return cls(
            **{name: fmean(getattr(speed, name) for speed in speeds) for name in names},
            split=speeds[0].split,
            staleness=dict(sum((Counter(speed.staleness) for speed in speeds), Counter[int]())),
        )

    @property
    def most_stale(self) -> int:
        return max(self.staleness)

    def share_at(self, bound: int) -> float:
        return self.staleness.get(bound, 0) / sum(self.staleness.values())

    def num_above(self, bound: int) -> int:
        return sum(count for staleness, count in self.staleness.items() if staleness > bound)


@dataclass
class Batches:
    """What was trained, when: a fold over a journal."""

    lengths: dict[TrajectoryId, int] = field(default_factory=dict)
    steps: list[do.TrainStep] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)

    def feed(self, entry: Entry) -> None:
        if isinstance(entry.event, RolloutReported):
            self.lengths |= {each.trajectory: each.length for each in entry.event.finished}
        elif isinstance(entry.event, StepTrained):
            self.ended.append(entry.now)
        for command in entry.commands:
            if isinstance(command, do.TrainStep):
                self.steps.append(command)
                self.begun.append(entry.now)

    def speed(self, split: float) -> Speed:
        window = range(FIRST, len(self.steps) - LAST)
        since, until = self.ended[FIRST - 1], self.ended[window[-1]]
        lengths = [self.lengths[t] for n in window for t in self.steps[n].trajectories]
        tokens = sum(lengths)
        return Speed(
            tokens_per_s=tokens / (until - since),
            step_s=(until - since) / len(window),
            split=split,
            mean_length=tokens / len(lengths),
            staleness=dict(sum((_staleness(self.steps[n]) for n in window), Counter[int]())),
            trainer_idle=sum(self.begun[n] - self.ended[n - 1] for n in window) / (until - since),
        )


def _staleness(step: do.TrainStep) -> Counter[int]:
    """Of a group: that of its stalest response."""
    oldest: dict[GroupId, int] = {}
    for trajectory, version in zip(step.trajectories, step.oldest, strict=True):
        oldest[trajectory.group] = min(version, oldest.get(trajectory.group, version))
    return Counter(step.version - version for version in oldest.values())


Job = tuple[Setting, str, float, int]
"""Setting, schedule, split, seed."""


def measured(job: Job) -> Speed:
    setting, schedule, split, seed = job
    scenario, batches = setting.scenario(schedule, split).with_seed(seed), Batches()
    result = simulate(scenario, schedule, record=batches.feed)
    if not result.is_complete:
        raise RuntimeError(f"{job} did not come to its end: {result.reason}")
    return batches.speed(split)
