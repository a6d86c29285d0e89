"""A scenario file: what is simulated, with which costs, and where each number comes from.

TOML, checked like a recipe: an unknown key is an error that names the nearest known one. Every section has a
``source``: a paper, a data sheet with the derivation, a measured run, or "assumption: ...". A scenario names the
schedules it compares; all of them see the same costs and the same lengths.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from tailrace.config import presets
from tailrace.config.complaints import SettingsError, read_table, sentences
from tailrace.config.load import leaves
from tailrace.config.presets import BoundName, StrategyName
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Leftovers, Placement
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.faults import Fault, InstanceFails, InstanceSlows, MessageLost
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.lengths import DrawnLengths, Lengths, read_trace
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import Sharing, WorldCosts

Share = Field(default=0.0, ge=0, le=1)


class ScenarioError(SettingsError):
    """The scenario cannot be simulated; the message says why."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


Checked = TypeVar("Checked", bound=Section)


class Sourced(Section):
    source: str = Field(min_length=1)
    """Where the numbers of this section come from."""


class VariantSection(Section):
    preset: str
    over_provision_prompts: float | None = Field(default=None, ge=1)
    over_provision_responses: float | None = Field(default=None, ge=1)
    over_provision_trials: tuple[Annotated[float, Field(gt=1)], ...] = ()
    leftovers: Leftovers | None = None
    max_staleness: NonNegativeInt | Literal["unbounded"] | None = None
    bound: BoundName | None = None
    rounds_ahead: NonNegativeInt | None = None
    routing: StrategyName | None = None
    synchronization: StrategyName | None = None
    migration: StrategyName | None = None
    keeps_deferred_tokens: bool | None = None
    max_versions_per_sample: PositiveInt | None = None
    max_stuck_s: PositiveFloat | None = None
    on_stuck: Literal["restart", "drop"] = "restart"
    rewards: Literal["streamed", "barrier"] = "streamed"
    """``barrier``: rewards run after the rollout stage."""


class ScheduleSection(Sourced):
    compare: tuple[str, ...] = ("sync",)
    """Presets, or names of ``variants``."""
    num_steps: PositiveInt
    rollout_batch_size: PositiveInt
    n_samples_per_prompt: PositiveInt
    variants: dict[str, VariantSection] = {}
    """Schedules of one's own: a preset and what is different."""
    dynamic_sampling: bool = False
    """Groups of equal scores are left out and replaced."""
    eval_prompts: NonNegativeInt = 0
    eval_interval: PositiveInt | None = None
    save_interval: PositiveInt | None = None


class EngineSection(Sourced):
    num_instances: PositiveInt
    devices_per_instance: PositiveInt = 1
    placement: Placement = Placement.COLOCATED
    k1: NonNegativeFloat
    k2: NonNegativeFloat
    k3: NonNegativeFloat
    k4: NonNegativeFloat
    prefill_s: NonNegativeFloat
    prefill_batch_s: NonNegativeFloat = 0.0
    prompt_s: NonNegativeFloat | None = None
    """Per prompt, computed once for the members of a group that run together; None: each prefills its own."""
    kv_capacity: PositiveInt
    max_running: PositiveInt = 1024
    prefill_chunk: PositiveInt | None = None
    """Most tokens prefilled before one step, padding to the longest sequence included; None: all, without padding."""
    class_s: NonNegativeFloat = 0.0
    length_classes: tuple[PositiveInt, ...] = ()
    """Capacities of the rows that the KV cache is kept in, ascending; none: a step attends to what is held."""
    prompt_length: PositiveInt
    start_s: NonNegativeFloat = 0.0
    pull_s: NonNegativeFloat = 0.0
    release_s: NonNegativeFloat = 0.0
    report_s: NonNegativeFloat = 0.0
    load_s: PositiveFloat = 10.0
    """Seconds between two reports of progress, where the schedule plans by the load of instances."""
    plan_interval_s: NonNegativeFloat = 1.0
    overlap_slowdown: PositiveFloat = 2.0


class TrainerSection(Sourced):
    num_replicas: PositiveInt = 1
    devices: PositiveInt = 1
    """Of the trainer alone, where it does not share those of the instances."""
    fixed_s: NonNegativeFloat
    token_s: NonNegativeFloat
    publish_s: NonNegativeFloat = 0.0
    publish_overlaps: bool = True
    checkpoint_s: NonNegativeFloat = 0.0


class RewardKindSection(Section):
    share: PositiveFloat = 1.0
    median_s: NonNegativeFloat = 0.0
    spread: NonNegativeFloat = 0.0
    timeout_share: float = Share
    timeout_s: PositiveFloat = 30.0


class RewardSection(Sourced):
    num_workers: PositiveInt
    kinds: tuple[RewardKindSection, ...] = (RewardKindSection(),)
    never_solved: float = Share
    always_solved: float = Share
    report_s: NonNegativeFloat = 0.0


class DistributionSection(Sourced):
    kind: Literal["lognormal", "normal", "uniform", "constant"] = "lognormal"
    median: PositiveFloat = 1000.0
    between: NonNegativeFloat = 0.0
    within: NonNegativeFloat = 0.0
    long_share: float = Share
    long_median: NonNegativeFloat = 0.0
    drift: float = 0.0


class LengthsSection(DistributionSection):
    max_response_length: PositiveInt
    num_prompts: PositiveInt = 100_000
    trace: Path | None = None
    """A length trace as `tailrace rollout` writes it, relative to the scenario file."""
    trace_cap: PositiveInt | None = None
    """Lengths from here on are censored in the trace; default: what the trace says, or its longest."""


class GridEntry(DistributionSection):
    name: str


class LengthGrid(Section):
    """Distributions on which schedules are compared, each under every cap."""

    caps: tuple[PositiveInt, ...]
    long_tailed: tuple[GridEntry, ...]
    not_long_tailed: tuple[GridEntry, ...]


class FaultSection(Section):
    source: str = ""
    """Where its numbers come from."""
    kind: Literal["lost", "slow", "message"]
    instance: NonNegativeInt
    at: NonNegativeFloat
    down_s: NonNegativeFloat = 0.0
    until: NonNegativeFloat = math.inf
    factor: PositiveFloat = 1.0
    repeat_s: NonNegativeFloat = 0.0

    def fault(self) -> Fault:
        instance = InstanceId(self.instance)
        match self.kind:
            case "lost":
                return InstanceFails(at=self.at, instance=instance, down_s=self.down_s)
            case "slow":
                return InstanceSlows(at=self.at, until=self.until, instance=instance, factor=self.factor)
            case "message":
                return MessageLost(at=self.at, instance=instance, repeat_s=self.repeat_s)


class Scenario(Sourced):
    name: str
    seed: int = 0
    schedule: ScheduleSection
    engine: EngineSection
    trainer: TrainerSection
    reward: RewardSection
    lengths: LengthsSection
    faults: tuple[FaultSection, ...] = ()

    def with_lengths(self, entry: GridEntry, cap: int) -> Scenario:
        """The same scenario on other lengths."""
        drawn = entry.model_dump(exclude={"name"})
        lengths = LengthsSection(max_response_length=cap, num_prompts=self.lengths.num_prompts, **drawn)
        return self.model_copy(update={"name": f"{self.name}/{entry.name}/{cap}", "lengths": lengths})

    def with_seed(self, seed: int) -> Scenario:
        return self.model_copy(update={"seed": seed})

    def with_steps(self, num_steps: int) -> Scenario:
        return self.model_copy(update={"schedule": self.schedule.model_copy(update={"num_steps": num_steps})})

    def with_split(self, rollout: float) -> Scenario:
        """The same devices, this share of them for rollout and the others for training."""
        engine, trainer = self.engine, self.trainer
        per_replica = trainer.devices // trainer.num_replicas
        devices = engine.num_instances * engine.devices_per_instance + trainer.devices
        num_instances = round(rollout * devices / engine.devices_per_instance)
        num_replicas = (devices - num_instances * engine.devices_per_instance) // per_replica
        return self._with_devices(num_instances, num_replicas, engine.placement)

    def colocated(self) -> Scenario:
        """The same devices, all of them for rollout and all for training, in turns."""
        engine, trainer = self.engine, self.trainer
        per_replica = trainer.devices // trainer.num_replicas
        devices = engine.num_instances * engine.devices_per_instance + trainer.devices
        return self._with_devices(devices // engine.devices_per_instance, devices // per_replica, Placement.COLOCATED)

    def _with_devices(self, num_instances: int, num_replicas: int, placement: Placement) -> Scenario:
        per_replica = self.trainer.devices // self.trainer.num_replicas
        engine = self.engine.model_copy(update={"num_instances": num_instances, "placement": placement})
        replicas = {"num_replicas": num_replicas, "devices": num_replicas * per_replica}
        return self.model_copy(update={"engine": engine, "trainer": self.trainer.model_copy(update=replicas)})

    def scaled(self, factor: int) -> Scenario:
        """The batch and everything that works on it, ``factor`` times."""
        fields = {
            "schedule": ("rollout_batch_size",),
            "engine": ("num_instances",),
            "trainer": ("num_replicas", "devices"),
            "reward": ("num_workers",),
        }
        sections = {}
        for name, counts in fields.items():
            section = getattr(self, name)
            sections[name] = section.model_copy(update={count: factor * getattr(section, count) for count in counts})
        return self.model_copy(update=sections)

    def world_costs(self) -> WorldCosts:
        engine = self.engine
        costs = {name: getattr(engine, name) for name in EngineCosts.__slots__}
        times = {name: getattr(engine, name) for name in ("start_s", "pull_s", "release_s", "report_s", "load_s")}
        trainer = self.trainer.model_dump(exclude={"source", "devices"})
        kinds = tuple(RewardKind(**kind.model_dump()) for kind in self.reward.kinds)
        reward = self.reward.model_dump(exclude={"source", "kinds"})
        return WorldCosts(
            engine=EngineCosts(**costs),
            instance=InstanceTimes(**times),
            trainer=TrainerCosts(**trainer),
            reward=RewardCosts(seed=self.seed, kinds=kinds, **reward),
            num_prompts=self.lengths.num_prompts,
            prompt_length=engine.prompt_length,
            max_response_length=self.lengths.max_response_length,
            sharing=Sharing(rollout=engine.overlap_slowdown, training=engine.overlap_slowdown),
        )

    def make_lengths(self) -> Lengths:
        chosen = self.lengths
        if chosen.trace is not None:
            return read_trace(chosen.trace, cap=chosen.trace_cap, seed=self.seed)
        fields = ("kind", "median", "between", "within", "long_share", "long_median", "drift")
        return DrawnLengths(seed=self.seed, **{name: getattr(chosen, name) for name in fields})


def load_scenario(path: Path) -> Scenario:
    return check(read_table(path, "scenario"), path)


def load_length_grid(path: Path) -> LengthGrid:
    return _validated(LengthGrid, read_table(path, "length grid"), path)


def check(data: dict[str, Any], path: Path) -> Scenario:
    """``path``: the file it comes from; a trace is looked for beside it."""
    scenario = _validated(Scenario, data, path)
    for key, name, known in _names(scenario.schedule):
        try:
            presets.check_trains(name, more=known)
        except ValueError as error:
            raise ScenarioError(f"{path}: {key}: {error}") from None
    if (trace := scenario.lengths.trace) is not None:
        if not (path.parent / trace).is_file():
            raise ScenarioError(f"{path}: lengths.trace: there is no file {path.parent / trace}")
        lengths = scenario.lengths.model_copy(update={"trace": path.parent / trace})
        scenario = scenario.model_copy(update={"lengths": lengths})
    longest = scenario.engine.prompt_length + scenario.lengths.max_response_length
    if longest > (held := scenario.engine.kv_capacity):
        raise ScenarioError(
            f"{path}: engine.kv_capacity: a response of {longest} tokens with its prompt never fits into {held}"
        )
    return scenario


def _names(chosen: ScheduleSection) -> Iterator[tuple[str, str, Collection[str]]]:
    """(key, schedule it names, variants it may name) of every name in the file."""
    for variant, section in chosen.variants.items():
        yield f"schedule.variants.{variant}.preset", section.preset, ()
    for name in chosen.compare:
        yield "schedule.compare", name, chosen.variants


def _validated(kind: type[Checked], data: dict[str, Any], path: Path) -> Checked:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        found = sentences(error, data, lambda name: f"unknown key {name}{_nearest(name)}")
        raise ScenarioError("\n".join(f"{path}: {sentence}" for sentence in found)) from None


def _nearest(name: str) -> str:
    known = [leaf for leaf, _ in leaves(Scenario)]
    by_key = {leaf.rsplit(".", 1)[-1]: leaf for leaf in known}
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7) or [
        by_key[key] for key in difflib.get_close_matches(name.rsplit(".", 1)[-1], by_key, n=1, cutoff=0.6)
    ]
    return f"; did you mean {close[0]}?" if close else ""
