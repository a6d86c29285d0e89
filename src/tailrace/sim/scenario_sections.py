"""The sections of a scenario file, with their keys and defaults.

Most sections have a ``source``, which says where their numbers come from: a paper, a data sheet with the derivation, a
measured run, or "assumption: ...".
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from tailrace.config.reward_settings import RewardTiming
from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Placement
from tailrace.sim.faults import Fault, InstanceFails, InstanceSlows, MessageLost
from tailrace.sim.parallel_section import ParallelSection
from tailrace.sim.section import ScenarioSection, Share, Sourced


class VariantTestsSection(ScenarioSection):
    timeouts: Literal["fixed", "adaptive"] | None = None
    """How long test cases may run; None: as in ``reward.code_tests``."""


class VariantJudgeSection(ScenarioSection):
    placement: Literal["shared", "own"] | None = None
    """Where judges compute; None: as in ``reward.judge``."""


class VariantRewardSection(ScenarioSection):
    timing: RewardTiming = "streamed"
    """``streamed``: score each response when it ends. ``barrier``: score all of them after the rollout of a step."""
    code_tests: VariantTestsSection = VariantTestsSection()
    judge: VariantJudgeSection = VariantJudgeSection()


class VariantSection(ScheduleOverrides, ScenarioSection):
    """A schedule: a preset with some settings changed, under the names that they have in a run."""

    reward: VariantRewardSection = VariantRewardSection()

    @model_validator(mode="before")
    @classmethod
    def _with_present_names(cls, data: Any) -> Any:
        """Read the names of older scenario files too: ``keeps_deferred_tokens`` and ``rewards``."""
        if not isinstance(data, dict):
            return data
        found = dict(data)
        if "keeps_deferred_tokens" in found and "keep_deferred_tokens" not in found:
            found["keep_deferred_tokens"] = found.pop("keeps_deferred_tokens")
        if "rewards" in found and "reward" not in found:
            found["reward"] = {"timing": found.pop("rewards")}
        return found


class ScheduleSection(Sourced):
    """The schedules to compare, and the settings that they share."""

    compare: tuple[str, ...] = ("sync",)
    """Names of presets or of ``variants``."""
    num_steps: PositiveInt
    """Optimizer steps to simulate."""
    rollout_batch_size: PositiveInt
    """Prompts per optimizer step."""
    n_samples_per_prompt: PositiveInt
    """Responses per prompt."""
    variants: dict[str, VariantSection] = {}
    """Further schedules by name, each a preset with some settings changed."""
    dynamic_sampling: bool = False
    """Filter groups whose scores are all equal, and replace them."""
    eval_prompts: NonNegativeInt = 0
    """Prompts of the evaluation set; 0: no evaluation."""
    eval_interval: PositiveInt | None = None
    """Optimizer steps between two evaluations."""
    save_interval: PositiveInt | None = None
    """Optimizer steps between two checkpoints."""


class EngineSection(Sourced):
    """The rollout instances and the costs of their engines (``sim/engine_costs.py``)."""

    num_instances: PositiveInt
    """Rollout instances."""
    devices_per_instance: PositiveInt = 1
    """Devices of one instance."""
    placement: Placement = Placement.COLOCATED
    """Which devices rollout and training use."""
    k1: NonNegativeFloat
    """Seconds per decode step for each token in the KV cache."""
    k2: NonNegativeFloat
    """Seconds per decode step for reading the weights: the least that its computation takes."""
    k3: NonNegativeFloat
    """Seconds per decode step for each running response, if computing takes longer than reading the weights."""
    k4: NonNegativeFloat
    """Fixed seconds per decode step."""
    row_s: NonNegativeFloat = 0.0
    """Seconds per decode step for each running response, beside reading and computing."""
    prefill_s: NonNegativeFloat
    """Seconds per prefilled token."""
    prefill_batch_s: NonNegativeFloat = 0.0
    """Fixed seconds of each prefill batch."""
    prompt_s: NonNegativeFloat | None = None
    """Seconds per prompt, if the members of a group that run together share its prefill; None: each member prefills the
    prompt at ``prefill_s`` per token."""
    kv_capacity: PositiveInt
    """Size of an instance's KV cache in tokens."""
    max_running: PositiveInt = 1024
    """Most responses that an instance generates at the same time."""
    prefill_chunk: PositiveInt | None = None
    """Most tokens that are prefilled before one step, padding included; None: no limit and no padding."""
    class_s: NonNegativeFloat = 0.0
    """Seconds per decode step for each length class in use."""
    length_classes: tuple[PositiveInt, ...] = ()
    """Row capacities of the KV cache, ascending; empty: attention covers exactly the tokens in the cache."""
    prompt_length: PositiveInt
    """Tokens of a prompt."""
    start_s: NonNegativeFloat = 0.0
    """Seconds that an instance takes to start."""
    pull_s: NonNegativeFloat = 0.0
    """Seconds that an instance takes to pull weights."""
    wake_s: NonNegativeFloat = 0.0
    """Further seconds that an instance takes to pull weights when it has released its memory."""
    release_s: NonNegativeFloat = 0.0
    """Seconds that an instance takes to release its memory, or to end."""
    report_s: NonNegativeFloat = 0.0
    """Seconds between two reports of finished responses; 0: report each at once."""
    load_s: PositiveFloat = 10.0
    """Seconds between two reports of progress, if the schedule plans by the load of instances."""
    plan_interval_s: NonNegativeFloat = 1.0
    """Least seconds between two plans."""
    overlap_slowdown: PositiveFloat = 2.0
    """Factor by which rollout and training slow each other down on shared devices."""
    parallel: ParallelSection | None = None
    """Sizes between which a schedule may choose; None: every instance has ``devices_per_instance``."""


class TrainerSection(Sourced):
    """The trainer and its costs. A step takes ``fixed_s + token_s * tokens / num_replicas``."""

    num_replicas: PositiveInt = 1
    """Data-parallel replicas."""
    devices: PositiveInt = 1
    """Devices of the trainer. Used only if placement is ``disaggregated``."""
    fixed_s: NonNegativeFloat
    """Fixed seconds of an optimizer step."""
    token_s: NonNegativeFloat
    """Seconds per token, prompt and response, on one replica."""
    publish_s: NonNegativeFloat = 0.0
    """Seconds to publish a version."""
    publish_overlaps: bool = True
    """True: publishing overlaps the next step. False: the next step begins after it."""
    checkpoint_s: NonNegativeFloat = 0.0
    """Seconds to write a checkpoint."""


class DistributionSection(Sourced):
    """A distribution of response lengths (``sim/lengths.py``)."""

    kind: Literal["lognormal", "normal", "uniform", "constant"] = "lognormal"
    """Family of the distribution."""
    median: PositiveFloat = 1000.0
    """Median length in tokens. For ``normal`` the mean, for ``uniform`` the middle of the range."""
    between: NonNegativeFloat = 0.0
    """Spread between prompts: for ``lognormal`` the standard deviation of ln(length), else a fraction of the median."""
    within: NonNegativeFloat = 0.0
    """Spread between the responses of one prompt, in the same unit."""
    long_share: float = Share
    """Share of the prompts whose median is ``long_median``."""
    long_median: NonNegativeFloat = 0.0
    """Median length of those prompts."""
    drift: float = 0.0
    """Relative growth of all lengths per version: 0.01 is one percent per optimizer step."""


class RampSection(Sourced):
    """Responses that become longer with every optimizer step."""

    first: PositiveInt
    """Token budget of responses that the first version generates."""
    per_step: PositiveInt
    """Tokens by which the budget of each later version is larger, up to ``max_response_length``."""


class LengthsSection(DistributionSection):
    """Response lengths of the scenario: a distribution or a recorded trace."""

    max_response_length: PositiveInt
    """Token budget of a response."""
    num_prompts: PositiveInt = 100_000
    """Prompts in one pass over the data."""
    ramp: RampSection | None = None
    """The budget grows, and all lengths in proportion to it; the distribution is that at ``max_response_length``."""
    trace: Path | None = None
    """Length trace as `tailrace rollout` writes it, relative to the scenario file; None: use the distribution."""
    trace_cap: PositiveInt | None = None
    """Token budget of the recorded run: lengths that reach it are censored. Default: the cap in the trace file, or its
    longest length."""


class GridEntry(DistributionSection):
    name: str


class LengthGrid(ScenarioSection):
    """Length distributions to compare schedules on, each combined with every token budget in ``caps``."""

    caps: tuple[PositiveInt, ...]
    """Token budgets of a response."""
    long_tailed: tuple[GridEntry, ...]
    """Distributions with a long tail."""
    not_long_tailed: tuple[GridEntry, ...]
    """Distributions without a long tail."""


class FaultSection(ScenarioSection):
    """A fault of one instance."""

    source: str = ""
    """Where the numbers of this section come from."""
    kind: Literal["lost", "slow", "message"]
    """``lost``: the instance fails. ``slow``: it becomes slower. ``message``: its next message is lost."""
    instance: NonNegativeInt
    """Number of the instance."""
    at: NonNegativeFloat
    """Second of the run at which the fault happens."""
    down_s: NonNegativeFloat = 0.0
    """``lost``: seconds until the instance can be started again."""
    until: NonNegativeFloat = math.inf
    """``slow``: second of the run at which it ends."""
    factor: PositiveFloat = 1.0
    """``slow``: factor by which everything on the instance takes longer."""
    repeat_s: NonNegativeFloat = 0.0
    """``message``: seconds until the message is sent again."""

    def fault(self) -> Fault:
        """Return the fault as the simulator uses it."""
        instance = InstanceId(self.instance)
        match self.kind:
            case "lost":
                return InstanceFails(at=self.at, instance=instance, down_s=self.down_s)
            case "slow":
                return InstanceSlows(at=self.at, until=self.until, instance=instance, factor=self.factor)
            case "message":
                return MessageLost(at=self.at, instance=instance, repeat_s=self.repeat_s)
