"""Settings of the schedule: a preset, and values that replace the preset's own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.presets import BoundName, PresetName
from tailrace.config.section import Section
from tailrace.policies.strategies import Migration, Routing, Synchronization


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


class ScheduleSettings(Section):
    preset: PresetName = "sync"
    """Schedule of rollout and training: `sync`, `tail-batching` (RollPacker), `active-partial` (APRIL), `one-step`,
    `async-cap`, `staleflow` (StaleFlow); or `rollout-only`, which generates and scores without training. The preset
    gives defaults to the settings below."""
    rollout_batch_size: PositiveInt = 32
    """Prompts trained in one optimizer step."""
    over_provision_prompts: Annotated[float, Field(ge=1)] | None = None
    """Prompts that a round starts, as a multiple of `rollout_batch_size` (rounded down)."""
    over_provision_responses: Annotated[float, Field(ge=1)] | None = None
    """Responses started for each prompt, as a multiple of `n_samples_per_prompt` (rounded up). Above 1, only the
    responses that finish first are trained, so short responses are preferred; 1 avoids that."""
    over_provision_trials: tuple[Annotated[float, Field(gt=1)], ...] = ()
    """Over-provisioning factors to try, such as [1.1, 1.2, 1.3, 1.4]; needs `defer`. Each is used for two short rounds,
    for prompts and responses. After the first long round the factor with the fewest seconds per step is kept."""
    leftovers: Literal["wait", "drop", "defer", "resume", "keep"] | None = None
    """What happens to unfinished responses when the batch is full. `wait`: the round waits for them. `drop`: they are
    aborted and their prompt is dropped. `defer`: they are aborted, and their prompt comes again in a long round.
    `resume`: they continue in the next round. `keep`: they go on, because there are no rounds."""
    max_staleness: NonNegativeInt | Literal["unbounded"] | None = None
    """Most versions between the weights that generated a token and the weights it trains; `unbounded`: any number."""
    bound: BoundName | None = None
    """How `max_staleness` is enforced. `deadline`: strictly; a batch takes whatever is complete. `order`: strictly;
    prompts are trained in the order in which they started. `count`: by a limit on the number of prompts in flight; this
    is not strict, so slow responses can be staler."""
    rounds_ahead: NonNegativeInt | None = None
    """Rounds that may start before the batches of earlier rounds are trained. Above 0, rollout and training overlap."""
    routing: Routing | None = None
    """Which instance gets a response. `vanilla`: the one with the fewest responses. `fixed`: the same, and a response
    that was interrupted goes on where it began. `throughput`: the one whose tokens per second grow most."""
    synchronization: Synchronization | None = None
    """When an instance pulls new weights. `vanilla`: at once. `throughput`: when queued responses need them."""
    migration: Migration | None = None
    """`throughput`: responses move away from overloaded or much faster instances. `vanilla`: responses never move."""
    coordination: CoordinationSettings = CoordinationSettings()
    placement: Literal["shared", "colocated", "disaggregated"] = "shared"
    """Which devices rollout and training use. `shared`: the same, and both stay in memory. `colocated`: the same, and
    rollout frees its memory while training runs. `disaggregated`: different ones, `trainer.num_ranks` for training and
    `rollout.num_instances * rollout.tensor_parallel_size` for rollout."""
    mps: Literal["auto", "never"] = "auto"
    """`auto`: if rollout and training share a GPU (`shared`), the run starts NVIDIA's Multi-Process Service for its
    workers where it is installed, so that their kernels run at the same time. `never`: it starts none."""
    keep_deferred_tokens: bool = False
    """A deferred prompt continues its unfinished responses if `max_staleness` allows it, instead of starting again."""
    epoch_end: Literal["carry", "flush"] = "carry"
    """Deferred prompts at the end of an epoch. `carry`: train them in the next epoch. `flush`: train them in a last,
    smaller batch, so that each epoch trains every prompt exactly once."""
    max_versions_per_sample: PositiveInt | None = None
    """Most weight versions that may generate parts of one response; needs `resume`. Default: any number."""
    on_version_cap: Literal["finish", "restart"] = "finish"
    """What happens to a response that has reached `max_versions_per_sample`. `finish`: the round waits for it.
    `restart`: it starts again from its prompt."""
    max_restarts_per_sample: NonNegativeInt = 2
    """How often one response may start again because of `on_version_cap`; after that the round waits for it."""
    max_stuck_s: PositiveFloat | None = None
    """Seconds that the trainer may wait for the last responses of a batch; after that `on_stuck` applies. Needs `keep`
    and a strict bound. Default: no limit."""
    on_stuck: Literal["restart", "drop"] = "restart"
    """What happens to a prompt that the trainer has waited for longer than `max_stuck_s`. `restart`: it starts again.
    `drop`: it is dropped. In both cases another prompt takes its place in the batch."""
    source_quotas: bool = True
    """With several sources and `drop` or `defer`: the batch of a short round holds each source in the proportion in
    which the round started it."""
    max_steps: PositiveInt | None = None
    """Number of optimizer steps; default: as many as `num_epochs` need."""
    num_epochs: PositiveInt = 1
    """Passes over the training prompts; ignored if `max_steps` is given."""
    num_prompts: PositiveInt | None = None
    """For `rollout-only`: generate for at most this many training prompts; default: for all of them."""
