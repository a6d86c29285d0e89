"""Every setting of a run: typed, frozen, checked before any work starts.

The sentence below a field is its documentation and its ``--help``. Names follow the field's common usage;
``rollout_batch_size`` counts prompts. The algorithm and the schedule choose from tables of variants and presets and
have files of their own. Rules that span fields live in ``rules.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.schedule_settings import ScheduleSettings
from tailrace.config.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""One name, or a list of them."""


class ModelSettings(Section):
    path: str = "tiny-arith"
    """Hugging Face model directory or id, or a built-in model (`tiny-arith`)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of weights and activations in rollout and of activations in training."""
    device: str = "auto"
    """`auto` (CUDA if there is one), `cpu`, or `cuda:N`."""
    lora_rank: NonNegativeInt = 0
    """Train a low-rank adapter (LoRA) of this rank and leave the model's own weights as they are; 0: train them all."""
    lora_alpha: PositiveInt = 32
    """The adapter's output counts `lora_alpha / lora_rank` times."""
    lora_target_modules: Names = Field(default=("all-linear",), min_length=1)
    """Layers that get an adapter, by the ends of their names (`q_proj`); `all-linear`: all but the output head."""


LoggerName = Literal["tensorboard", "wandb", "wandb-offline", "trackio"]


class DataSourceSettings(Section):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the source in metrics: `reward/source/<name>/mean`."""
    path: str
    """Prompts, in any form that `data.train` takes."""
    weight: PositiveFloat | None = None
    """Share of the batch, relative to the other sources; default: the number of prompts (give all weights or none)."""
    reward: Names = ()
    """Reward functions for these prompts, instead of `reward.functions`."""
    prompt_column: str | None = None
    """Default: `data.prompt_column`."""
    answer_column: str | None = None
    """Default: `data.answer_column`."""


DEFAULT_TRAIN = "builtin:arith-train"


class DataSettings(Section):
    train: str = DEFAULT_TRAIN
    """Training prompts: a jsonl or parquet file, a directory saved by Hugging Face datasets, `hf:owner/name[:split]`,
    `reasoning-gym:TASK[?size=500&seed=0]`, or `builtin:NAME`."""
    sources: tuple[DataSourceSettings, ...] = ()
    """Several weighted sources instead of `train`, each with name, path, weight and reward."""
    prompt_column: str | None = None
    """Column of the prompt; dots reach into tables. Default: found by the names that common systems use."""
    answer_column: str | None = None
    """Column of the answer; dots reach into tables. Default: found by the names that common systems use."""
    max_prompt_length: PositiveInt = 256
    """Prompts of more tokens are left out (counted and reported)."""
    apply_chat_template: bool | None = None
    """Render prompts with the tokenizer's chat template; default: only prompts that are chat lists."""
    shuffle: bool = True
    """Visit the prompts of each epoch in a seeded random order."""

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        names = [source.name for source in self.sources]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sources are called '{doubled[0]}'; give each a name of its own")
        if names and self.train != DEFAULT_TRAIN:
            raise ValueError(f"give either train ('{self.train}') or sources ({', '.join(names)}), not both")
        if len({source.weight is None for source in self.sources}) > 1:
            lacking = [source.name for source in self.sources if source.weight is None]
            raise ValueError(f"give every source a weight, or none: {', '.join(lacking)} has none")
        return self


class SamplingSettings(Section):
    temperature: NonNegativeFloat = 1.0
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probabilities reach this sum."""
    top_k: PositiveInt | None = None
    """Keep the k most likely tokens."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Drop tokens less likely than this fraction of the most likely one."""
    stop: tuple[str, ...] = ()
    """Strings that end a response (the text that completes one is kept)."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a response, besides the model's own end-of-sequence tokens."""


class CostSettings(Section):
    """Seconds of a decode step of n responses that hold kv tokens: `k1 * kv + max(k2, k3 * n) + k4`. A run with
    `throughput` strategies begins with these and measures them when they turn out wrong, unless it is deterministic."""

    k1: NonNegativeFloat = 0.0
    """Seconds per step and token held in the KV cache."""
    k2: NonNegativeFloat = 0.0
    """Least seconds per step for reading the weights."""
    k3: NonNegativeFloat = 0.0
    """Seconds per step and running response, where computing outweighs reading the weights."""
    k4: PositiveFloat = 1.0
    """Seconds per step, always. With these defaults every response that fits counts the same until the costs are
    measured."""
    k5: PositiveFloat = 1.0
    """Tokens of the KV cache that a token of a response takes up."""
    prefill_s: NonNegativeFloat = 0.0
    """Seconds per prefilled token."""


class RolloutSettings(SamplingSettings):
    n_samples_per_prompt: PositiveInt = 8
    """Responses per prompt: the size of a group."""
    max_response_length: PositiveInt = 512
    """Token budget of a response, over all its segments."""
    num_instances: PositiveInt = 1
    """Rollout engine replicas, each a process of its own."""
    engine: Literal["native"] = "native"
    """Rollout engine."""
    from_run: Path | None = None
    """Take responses from this run directory instead of generating them: one of `tailrace rollout`, or of a training
    run with `keep_rollouts`."""
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
    costs: CostSettings = CostSettings()


class RewardFunctionSettings(Section):
    function: str
    """As in `reward.functions`."""
    weight: float = 1.0
    """Its score counts so many times."""

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class RewardSettings(Section):
    functions: Annotated[tuple[RewardFunctionSettings, ...] | None, BeforeValidator(_as_tuple)] = Field(
        default=None, min_length=1
    )
    """`exact_match`, `math_verify`, `reasoning_gym`, `path/to/file.py:function` or `package.module:function`, or tables
    with `function` and `weight`; weighted scores are added. Default: what comes with the prompts, or `exact_match`."""
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
    """Most tokens of a micro-batch; of a prefix that several responses share, each further one counts as a quarter."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    threads: PositiveInt | None = None
    """CPU threads of the training worker; default: the cores of this machine."""


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
    """Times an instance is restarted between two optimizer steps. Past it the others go on without it until the next
    step; without any left the run fails."""


class EvalSetSettings(SamplingSettings):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the set in metrics: `eval/<name>/avg@k`."""
    path: str
    """Prompts, in any form that `data.train` takes."""
    n_samples_per_prompt: PositiveInt = 1
    """k of avg@k and pass@k."""
    max_prompts: PositiveInt | None = None
    """Use the first so many prompts."""
    max_response_length: PositiveInt | None = None
    """Token budget; default: the rollout's."""
    reward: Names = ()
    """Reward functions for this set, instead of `reward.functions`."""
    prompt_column: str | None = None
    """Default: `data.prompt_column`."""
    answer_column: str | None = None
    """Default: `data.answer_column`."""


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
    logger: Annotated[tuple[LoggerName, ...], BeforeValidator(_as_tuple)] = ()
    """Where metrics go besides `metrics.jsonl`: any of `tensorboard`, `wandb`, `wandb-offline`, `trackio`."""
    report: bool = True
    """Write `report.html` when the command ends; `tailrace report` writes it at any time."""
    project_name: str = Field(default="tailrace", min_length=1)
    """Project under which W&B and trackio file the run."""
    experiment_name: str | None = None
    """Name of the run for W&B and trackio; default: the name of `output_dir`."""
