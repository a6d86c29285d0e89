"""Every setting of a run: typed, frozen, checked before any work starts.

The sentence below a field is its documentation and its ``--help``. Names follow the field's common usage;
``rollout_batch_size`` counts prompts. Rules that span fields live in ``rules.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

Probability = float
Decay = Annotated[float, Field(ge=0, lt=1)]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""One name, or a list of them."""


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, documented by the strings below the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class ModelSettings(Section):
    path: str = "tiny-arith"
    """Hugging Face model directory or id, or a built-in model (`tiny-arith`)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and activations in rollout and of activations in training."""
    device: str = "auto"
    """`auto` (CUDA if there is one), `cpu`, or `cuda:N`."""


class DataSettings(Section):
    train: str = "builtin:arith-train"
    """Training prompts: a jsonl file with `prompt` and `answer`, or `builtin:NAME`."""
    max_prompt_length: PositiveInt = 256
    """Prompts of more tokens are left out (counted and reported)."""
    apply_chat_template: bool | None = None
    """Render prompts with the tokenizer's chat template; default: only prompts that are chat lists."""
    shuffle: bool = True
    """Visit the prompts of each epoch in a seeded random order."""


class SamplingSettings(Section):
    temperature: NonNegativeFloat = 1.0
    """0 is greedy."""
    top_p: Probability = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probabilities reach this sum."""
    top_k: PositiveInt | None = None
    """Keep the k most likely tokens."""
    min_p: Probability = Field(default=0.0, ge=0, lt=1)
    """Drop tokens less likely than this fraction of the most likely one."""
    stop: tuple[str, ...] = ()
    """Strings that end a response (the text that completes one is kept)."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, besides the model's own end-of-sequence tokens."""


class RolloutSettings(SamplingSettings):
    n_samples_per_prompt: PositiveInt = 8
    """Responses per prompt: the size of a group."""
    max_response_length: PositiveInt = 512
    """Token budget of a response, over all its segments."""
    num_instances: PositiveInt = 1
    """Rollout engine replicas, each a process of its own."""
    engine: Literal["native"] = "native"
    """Rollout engine."""
    max_running: PositiveInt = 128
    """Most responses an instance generates at the same time."""
    kv_tokens: PositiveInt | None = None
    """KV budget of an instance in tokens; over it the youngest response is recomputed later.
    Default: half of `max_running` longest responses."""
    prefill_chunk: PositiveInt = 512
    """Most prompt tokens an instance prefills in one step."""
    threads: PositiveInt | None = None
    """CPU threads of an instance; default: the cores of this machine."""
    deterministic: bool = False
    """Fixed shapes: results do not depend on batch composition, interruption or resume, at the price of speed."""
    progress_interval_s: PositiveFloat = 0.25
    """How often an instance reports unfinished responses."""


class RewardSettings(Section):
    functions: Names = ("exact_match",)
    """`exact_match`, `math_verify`, `path/to/file.py:function` or `package.module:function`; scores are added."""
    workers: PositiveInt = 1
    """Reward processes."""
    timeout_s: PositiveFloat = 10.0
    """Time limit of one score; past it the process is killed and the outcome is `timeout`."""
    memory_mb: PositiveInt | None = 2048
    """Memory a reward process may take beyond what loading its functions took; null for no limit."""
    on_failure: Literal["zero", "drop"] = "zero"
    """A response whose reward failed scores 0, or is dropped from its group."""
    timing: Literal["streamed", "barrier"] = "streamed"
    """`streamed`: scored as soon as a response ends; `barrier`: after all responses of the step."""


class ImportanceSamplingSettings(Section):
    type: Literal["none", "tis"] = "none"
    """Correction for the gap between rollout and training log-probs: truncated importance sampling, or none."""
    clip_high: PositiveFloat = 2.0
    """Largest weight of a token."""


class AlgorithmSettings(Section):
    advantage_estimator: Literal["grpo"] = "grpo"
    """How rewards of a group become advantages."""
    normalize_by_std: bool = True
    """Divide by the group's standard deviation (false: Dr. GRPO's form)."""
    clip_ratio_low: PositiveFloat = 0.2
    """Lower clip range of the probability ratio."""
    clip_ratio_high: PositiveFloat = 0.28
    """Upper clip range of the probability ratio (clip-higher)."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """How token losses of a batch are averaged."""
    kl_loss_coef: NonNegativeFloat = 0.0
    """Weight of the k3 KL term to the starting model."""
    old_logprobs: Literal["behaviour", "recompute"] = "behaviour"
    """Log-probs in the ratio's denominator: the engine's, or recomputed by the trainer before the step."""
    importance_sampling: ImportanceSamplingSettings = ImportanceSamplingSettings()


class TrainerSettings(Section):
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moment decay rates."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up."""
    max_grad_norm: PositiveFloat = 1.0
    """Global-norm gradient clipping."""
    max_tokens_per_gpu: PositiveInt = 16384
    """Most tokens (padding included) of a micro-batch."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    threads: PositiveInt | None = None
    """CPU threads of the training worker; default: the cores of this machine."""


class ScheduleSettings(Section):
    preset: Literal["sync"] = "sync"
    """How rollout and training alternate."""
    rollout_batch_size: PositiveInt = 32
    """Prompts per step."""
    max_steps: PositiveInt | None = None
    """Optimizer steps; default: `num_epochs` passes over the prompts."""
    num_epochs: PositiveInt = 1
    """Passes over the training prompts, where `max_steps` is not given."""


class LimitSettings(Section):
    """How long a wait may last before the run does something about it."""

    start_s: PositiveFloat = 600.0
    """A worker starts and loads the model."""
    progress_s: PositiveFloat = 300.0
    """A rollout instance with work reports nothing; past it the instance is restarted."""
    train_s: PositiveFloat = 3600.0
    """One optimizer step."""
    weights_s: PositiveFloat = 600.0
    """Publishing or pulling one version of the weights."""
    checkpoint_s: PositiveFloat = 1800.0
    """Writing one checkpoint."""
    max_restarts: NonNegativeInt = 3
    """Times an instance may be restarted between two optimizer steps."""


class EvalSetSettings(SamplingSettings):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the set in metrics: `eval/<name>/avg@k`."""
    path: str
    """Prompts: a jsonl file, or `builtin:NAME`."""
    n_samples_per_prompt: PositiveInt = 1
    """k of avg@k and pass@k."""
    max_prompts: PositiveInt | None = None
    """Use the first so many prompts."""
    max_response_length: PositiveInt | None = None
    """Token budget; default: the rollout's."""


class Settings(Section):
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    trainer: TrainerSettings = TrainerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    limits: LimitSettings = LimitSettings()
    eval: tuple[EvalSetSettings, ...] = ()
    """Evaluation sets, each with sampling settings of its own."""
    eval_interval: PositiveInt | None = None
    """Evaluate before the first step, every so many steps, and at the end; default: not at all."""
    save_interval: PositiveInt | None = None
    """Write a checkpoint every so many steps and at the end; default: at the end only."""
    keep_checkpoints: PositiveInt = 2
    """Newest checkpoints to keep."""
    keep_rollouts: bool = False
    """Keep the payload of trained responses instead of deleting it once a checkpoint covers it."""
    seed: NonNegativeInt = 0
    """Keys every random choice of the run."""
    output_dir: Path = Path("runs/run")
    """The run directory; a recipe that names none gets `runs/<name of the recipe>`."""
    resume: Literal["auto", "never"] = "auto"
    """`auto`: the same command continues an unfinished run in `output_dir`; `never`: refuse a used directory."""
