"""Settings of the schedule of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from tailrace.config.presets import PresetName
from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.config.section import Common, Section


class CoordinationSettings(Section):
    """Settings of the `throughput` strategies."""

    min_gain: float = Field(default=0.3, gt=0, le=1)
    """Routing: a response goes to an instance only if it adds at least this fraction of the tokens per second that it
    would add to an idle instance. An instance is then loaded up to about 1 - sqrt(min_gain) of its top speed."""
    max_waiting: NonNegativeInt = 3
    """Migration: most responses that may queue inside an instance; the others are moved to another instance."""
    max_gap: float = Field(default=5.0, ge=1)
    """Migration: responses move between two instances if one is more than this many times as fast as the other."""
    pause_s: NonNegativeFloat = 10.0
    """Migration: seconds after a move in which no more responses are moved away from the same instance."""
    plan_interval_s: NonNegativeFloat | None = None
    """Least seconds between two plans. A plan is made only after an event. Default: 50 µs for each running or queued
    response (about ten times the planning time), and at least 0.1 s while no instance could take more work."""
    validation: Literal["instance", "global"] = "instance"
    """`instance`: plan for instances with no outstanding command. `global`: plan only when no instance has one."""


class ScheduleSettings(ScheduleOverrides):
    """When responses are generated and trained. Where a setting names no default, the preset's value holds."""

    preset: Common[PresetName] = "sync"
    """Schedule of rollout and training: `sync`, `stage-overlap` (streamed steps), `tail-batching`, `rollpacker` (all of
    RollPacker, of which `tail-batching` is a part), `active-partial` (APRIL), `one-step`, `async-cap`, `staleflow`
    (StaleFlow); or `rollout-only`, which generates and scores without training. The preset gives defaults to the
    settings below."""
    rollout_batch_size: Common[PositiveInt] = 32
    """Prompts trained in one optimizer step."""
    coordination: CoordinationSettings = CoordinationSettings()
    placement: Common[Literal["shared", "colocated", "disaggregated"]] = "shared"
    """Which devices rollout and training use. `shared`: the same, and both stay in memory. `colocated`: the same, and
    rollout frees its memory while training runs. `disaggregated`: different ones, `trainer.num_ranks` for training and
    `rollout.num_instances * rollout.tensor_parallel_size` for rollout."""
    mps: Literal["auto", "never"] = "auto"
    """`auto`: if rollout and training (`shared`) or a judge and rollout compute on one GPU at the same time, the run
    starts NVIDIA's Multi-Process Service for these workers where it is installed, so that their kernels run at the same
    time. `never`: it starts none."""
    epoch_end: Literal["carry", "flush"] = "carry"
    """Deferred prompts at the end of an epoch. `carry`: train them in the next epoch. `flush`: train them in a last,
    smaller batch, so that each epoch trains every prompt exactly once."""
    source_quotas: bool = True
    """With several sources and `drop` or `defer`: the batch of a short round holds each source in the proportion in
    which the round started it."""
    max_steps: Common[PositiveInt | None] = None
    """Number of optimizer steps; default: as many as `num_epochs` need."""
    num_epochs: Common[PositiveInt] = 1
    """Passes over the training prompts; ignored if `max_steps` is given."""
    num_prompts: Common[PositiveInt | None] = None
    """For `rollout-only`: generate for at most this many training prompts; default: for all of them."""
