"""The sections of a scenario file: what each may say, and what it is where it says nothing.

Every section has a ``source``: a paper, a data sheet with the derivation, a measured run, or "assumption: ...".
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.presets import BoundName, StrategyName
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Leftovers, Placement
from tailrace.sim.faults import Fault, InstanceFails, InstanceSlows, MessageLost

Share = Field(default=0.0, ge=0, le=1)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


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
