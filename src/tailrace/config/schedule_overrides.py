"""A schedule by its preset and the values that replace the preset's own.

The settings of a run and the variants of a scenario are such schedules, with more settings beside these; a replay under
another preset is one without any. `schedule_builder.apply_preset` makes a schedule of the core from each.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.presets import PRESETS, BoundName, Preset
from tailrace.config.section import Common, Section
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Leftovers, Stream
from tailrace.policies.strategies import KINDS, Migration, ParallelSizes, Routing, Scaling, Synchronization


class ScheduleOverrides(Section):
    """A preset, and values that replace its own; None keeps the preset's value."""

    preset: str
    """Name of the preset."""
    over_provision_prompts: Common[Annotated[float, Field(ge=1)] | None] = None
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
    max_staleness: Common[NonNegativeInt | Literal["unbounded"] | None] = None
    """Most versions between the weights that generated a token and the weights it trains; `unbounded`: any number."""
    bound: BoundName | None = None
    """How `max_staleness` is enforced. `deadline`: strictly; a batch takes whatever is complete. `order`: strictly;
    prompts are trained in the order in which they started. `count`: by a limit on the number of prompts in flight; this
    is not strict, so slow responses can be staler."""
    rounds_ahead: NonNegativeInt | None = None
    """Rounds that may start before the batches of earlier rounds are trained. Above 0, rollout and training overlap."""
    stream: Common[Stream | None] = None
    """Whether complete groups are trained while their round still runs; the optimizer step is taken at its end.
    `always`: each time that the trainer is free. `once`: only once in a round. `never`: training begins when the batch
    is full."""
    stream_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Least part of the batch that `stream` trains at once. Default: 0.125 with `always`, 0.5 with `once`."""
    lending: Common[Scaling | None] = None
    """Whether instances leave their devices to training for the rest of a round; needs `stream` and at least two
    replicas of the trainer. `fixed`: as soon as `lend_at` of the batch is complete. `kv-peak`: when the responses that
    are left fit into the other instances. `never`: all instances work until the round ends."""
    lend_at: Annotated[float, Field(ge=0.2, le=0.5)] = 0.4
    """Part of the batch that is complete when `lending = "fixed"` lends instances."""
    parallelism: Common[ParallelSizes | None] = None
    """Which of `rollout.parallel_sizes` the instances of a round have. `fixed`: `rollout.tensor_parallel_size`.
    `preemptions`: it is doubled when responses are preempted more often than in the round before, and halved after four
    rounds without a preemption. `forecast`: the size whose rounds are expected to be shortest, by the lengths of
    earlier rounds and the measured costs of each size. Short and long rounds each have their own size."""
    parallel_horizon: PositiveInt | Literal["any"] = 50
    """Rounds within which a change of the parallel size must save more time than it takes; `any`: the price of a change
    does not count."""
    routing: Routing | None = None
    """Which instance gets a response. `vanilla`: the one with the fewest responses. `fixed`: the same, and a response
    that was interrupted goes on where it began. `throughput`: the one whose tokens per second grow most."""
    synchronization: Synchronization | None = None
    """When an instance pulls new weights. `vanilla`: at once. `throughput`: when queued responses need them."""
    migration: Migration | None = None
    """`throughput`: responses move away from overloaded or much faster instances. `vanilla`: responses never move."""
    keep_deferred_tokens: bool = False
    """A deferred prompt continues its unfinished responses if `max_staleness` allows it, instead of starting again."""
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

    def asked(self, names: Collection[str]) -> frozenset[str]:
        """Return those of these fields of a preset for which a value is given."""
        return frozenset(name for name in names if getattr(self, name, None) is not None)

    def resolved(self) -> Preset:
        """Return the preset with the given values in place of its own."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "over_provision_prompts",
                "over_provision_responses",
                "rounds_ahead",
                "stream",
                "lending",
                "parallelism",
                *KINDS,
            )
            if getattr(self, name) is not None
        }
        if self.leftovers is not None:
            given["leftovers"] = Leftovers(self.leftovers)
        if self.max_staleness is not None:
            # The only place that knows the word: here None means "the preset's", everywhere else it means "no bound".
            given["max_staleness"] = None if self.max_staleness == "unbounded" else self.max_staleness
        if self.bound is not None:
            given["bound"] = AdmissionRule(self.bound)
        return replace(PRESETS[self.preset], **given)
