"""Which settings may change when a run is continued. The run directory and the trainer's checkpoints both ask here.

A setting may change only if the core does not know it: the core repeats its decisions from the journal, so its schedule
must stay the same (`limits` come with the event that continues a run). It must also leave what is computed
as it is: prompts, tokens, rewards and gradients. Other ranks or devices add numbers up in another order, so results
differ by rounding.
"""

from __future__ import annotations

HOW_COMPUTED = (
    "model.device",
    "rollout.tensor_parallel_size",
    "rollout.threads",
    "reward.workers",
    "trainer.num_ranks",
    "trainer.num_replicas",
    "trainer.tensor_parallel_size",
    "trainer.reduce_gradients",
    "trainer.optimizer_device",
    "trainer.max_tokens_per_gpu",
    "trainer.gradient_checkpointing",
    "trainer.torch_compile",
    "trainer.weight_channel",
    "trainer.threads",
)
"""Settings that say where the run computes and in which pieces."""

_AROUND = (
    "output_dir", "resume", "limits", "keep_checkpoints", "keep_rollouts", "logger", "report", "project_name",
    "experiment_name", "schedule.mps", "runtime", "ray",
)  # fmt: skip
"""Settings and sections that say what is kept, shown and waited for, and what kind of workers a run has."""


def may_change(name: str) -> bool:
    """Whether a setting, such as ``trainer.num_ranks``, may differ when a run is continued."""
    return any(name == free or name.startswith(f"{free}.") for free in (*HOW_COMPUTED, *_AROUND))
