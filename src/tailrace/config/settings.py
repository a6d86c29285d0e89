"""Every setting of a run: typed, frozen, checked before any work starts.

Each section has a file of its own, ``NAME_settings.py``; limits, evaluation sets and the settings of the run as a whole
are here. The sentence below a field is its documentation and its help. ``--help`` shows a setting whose type is inside
``Common[...]``, ``--help-all`` also the others. Choices are types, so a sentence does not list them again. Names are
those that other systems use too; ``rollout_batch_size`` counts prompts. Rules between settings are in ``rules.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.data_settings import DataSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.ray_settings import RaySettings
from tailrace.config.reward_settings import RewardSettings
from tailrace.config.rollout_settings import RolloutSettings, SamplingSettings
from tailrace.config.schedule_settings import ScheduleSettings
from tailrace.config.section import Common, Names, Section, as_tuple
from tailrace.config.trainer_settings import TrainerSettings

LoggerName = Literal["tensorboard", "wandb", "wandb-offline", "trackio"]


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
    logger: Common[Annotated[tuple[LoggerName, ...], BeforeValidator(as_tuple)]] = ()
    """Loggers that get the metrics, besides `metrics.jsonl`."""
    report: bool = True
    """Write `report.html` when the command ends. `tailrace report` writes it at any time."""
    project_name: Common[str] = Field(default="tailrace", min_length=1)
    """Name of the project in W&B and trackio."""
    experiment_name: Common[str | None] = None
    """Name of the run in W&B and trackio; default: the name of `output_dir`."""
