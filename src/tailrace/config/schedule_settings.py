"""Settings of the schedule: a preset, and where to move away from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.presets import BoundName, PresetName, StrategyName
from tailrace.config.section import Section


class CoordinationSettings(Section):
    """Numbers of the `throughput` strategies."""

    min_gain: float = Field(default=0.3, gt=0, le=1)
    """Routing: the least a response must add to an instance's tokens per second, as a part of what it would add to an
    idle one. With m an instance is loaded to about 1 - sqrt(m) of its top speed."""
    max_waiting: NonNegativeInt = 3
    """Migration: responses that may wait for room inside an instance; those beyond are taken back."""
    max_gap: float = Field(default=5.0, ge=1)
    """Migration: how many times as fast as another an instance may be before work moves between them."""
    pause_s: NonNegativeFloat = 10.0
    """Migration: an instance that gave work away is left alone for so long."""
    plan_interval_s: NonNegativeFloat | None = None
    """Least seconds between two plans; a plan is made only after something happened. Default: 50 µs for each response
    that runs or waits, ten times what a plan takes; while every instance has what work it may have, at least 0.1 s."""
    validation: Literal["instance", "global"] = "instance"
    """Plan for the instances that owe no answer, or only while none owes one."""


class ScheduleSettings(Section):
    preset: PresetName = "sync"
    """How rollout and training share the time: `sync`, `tail-batching` (RollPacker), `active-partial` (APRIL),
    `one-step`, `async-cap`, `staleflow` (StaleFlow); or `rollout-only`, which generates and scores without training.
    Settings below that have no value of their own are as the preset has them."""
    rollout_batch_size: PositiveInt = 32
    """Prompts per step."""
    over_provision_prompts: Annotated[float, Field(ge=1)] | None = None
    """Prompts a round launches, as a multiple of `rollout_batch_size` (rounded down)."""
    over_provision_responses: Annotated[float, Field(ge=1)] | None = None
    """Responses a prompt is launched with, as a multiple of `n_samples_per_prompt` (rounded up); 1 is the strict mode:
    the fastest responses are not preferred."""
    over_provision_trials: tuple[Annotated[float, Field(gt=1)], ...] = ()
    """Factors to try in the first rounds with `defer`, such as [1.1, 1.2, 1.3, 1.4]: each serves two short rounds as
    factor for prompts and responses; after the first long round the one with the least seconds per step is kept."""
    leftovers: Literal["wait", "drop", "defer", "resume", "keep"] | None = None
    """What becomes of responses that are not finished when the batch is full: wait for them, drop them, defer their
    prompts to a long round, resume them in the next round, or keep them running without rounds."""
    max_staleness: NonNegativeInt | Literal["unbounded"] | None = None
    """Most versions between the oldest token of a trained response and the weights it trains."""
    bound: BoundName | None = None
    """How `max_staleness` is kept: `deadline`, strictly, and a batch is what is done in time; `order`, strictly, and
    prompts are trained in the order they began; `count`, by a cap on what is in flight, which slow responses exceed."""
    rounds_ahead: NonNegativeInt | None = None
    """Rounds that may begin before the batches of earlier ones are trained: rollout and training overlap."""
    routing: StrategyName | None = None
    """Which instance a response goes to: `vanilla`, the one with the fewest; `throughput`, where it adds most."""
    synchronization: StrategyName | None = None
    """When an instance pulls a new version: `vanilla`, at once; `throughput`, if that lets in work that waits."""
    migration: StrategyName | None = None
    """`throughput`: responses move from crowded or much faster instances to others; `vanilla`: they do not."""
    coordination: CoordinationSettings = CoordinationSettings()
    placement: Literal["shared", "colocated"] = "shared"
    """Rollout and training both stay in memory, or rollout gives its memory back while training runs."""
    keep_deferred_tokens: bool = False
    """A deferred prompt resumes its responses where `max_staleness` allows, instead of beginning again."""
    epoch_end: Literal["carry", "flush"] = "carry"
    """Deferred prompts at the end of a pass over the data: carry them on, or train them in a last, smaller batch."""
    max_versions_per_sample: PositiveInt | None = None
    """Most versions that may write one response, with `resume`; default: any number."""
    on_version_cap: Literal["finish", "restart"] = "finish"
    """A response at `max_versions_per_sample`: the round waits for it, or it begins again from its prompt."""
    max_stuck_s: PositiveFloat | None = None
    """Without rounds and under a strict bound: seconds the trainer may wait for the last responses of a batch; default:
    as long as they take. Past it their prompts begin again or are dropped, and others take their places."""
    on_stuck: Literal["restart", "drop"] = "restart"
    """What becomes of prompts that training has waited for longer than `max_stuck_s`."""
    source_quotas: bool = True
    """Short rounds take prompts of several sources in the proportion they were launched in."""
    max_steps: PositiveInt | None = None
    """Optimizer steps; default: `num_epochs` passes over the prompts."""
    num_epochs: PositiveInt = 1
    """Passes over the training prompts, where `max_steps` is not given."""
    num_prompts: PositiveInt | None = None
    """`rollout-only`: generate for the first so many training prompts; default: all, once."""
