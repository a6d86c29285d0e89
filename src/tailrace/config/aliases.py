"""Names of settings in other systems. They are accepted, with a hint that names the setting here.

* An alias may be used at the top of a recipe, in the section of the setting it means, or under the full name that its
  own system gives it; `-` and `_` are the same.
* A setting may be given once: an alias beside the setting itself, or two aliases of it, is an error.
* A name is here only if it means the same thing in the same unit wherever it is used. `batch_size` and
  `train_batch_size`, say, count prompts in one system and responses in another, so they are not accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

ALIASES: dict[str, str] = {
    "model_name_or_path": "model.path",
    "hf_checkpoint": "model.path",
    "pretrain": "model.path",
    "model.name": "model.path",
    "actor.path": "model.path",
    "policy.model_name": "model.path",
    "actor_rollout_ref.model.path": "model.path",
    "lora_rank": "model.lora_rank",
    "lora_r": "model.lora_rank",
    "actor_rollout_ref.model.lora_rank": "model.lora_rank",
    "lora_alpha": "model.lora_alpha",
    "actor_rollout_ref.model.lora_alpha": "model.lora_alpha",
    "target_modules": "model.lora_target_modules",
    "lora_target_modules": "model.lora_target_modules",
    "actor_rollout_ref.model.target_modules": "model.lora_target_modules",
    "train_files": "data.train",
    "prompt_data": "data.train",
    "input_key": "data.prompt_column",
    "prompt_key": "data.prompt_column",
    "label_key": "data.answer_column",
    "output_key": "data.answer_column",
    "rollout_max_prompt_len": "data.max_prompt_length",
    "data.train_batch_size": "schedule.rollout_batch_size",
    "trainer.train_batch_size": "schedule.rollout_batch_size",
    "num_prompts_per_step": "schedule.rollout_batch_size",
    "grpo.num_prompts_per_step": "schedule.rollout_batch_size",
    "num_generations": "rollout.n_samples_per_prompt",
    "num_generations_per_prompt": "rollout.n_samples_per_prompt",
    "grpo.num_generations_per_prompt": "rollout.n_samples_per_prompt",
    "group_size": "rollout.n_samples_per_prompt",
    "rollout.n": "rollout.n_samples_per_prompt",
    "gconfig.n_samples": "rollout.n_samples_per_prompt",
    "actor_rollout_ref.rollout.n": "rollout.n_samples_per_prompt",
    "max_completion_length": "rollout.max_response_length",
    "max_new_tokens": "rollout.max_response_length",
    "gconfig.max_new_tokens": "rollout.max_response_length",
    "response_length": "rollout.max_response_length",
    "max_generate_length": "rollout.max_response_length",
    "rollout_max_response_len": "rollout.max_response_length",
    "data.max_response_length": "rollout.max_response_length",
    "gconfig.temperature": "rollout.temperature",
    "rollout_temperature": "rollout.temperature",
    "actor_rollout_ref.rollout.temperature": "rollout.temperature",
    "vllm_tensor_parallel_size": "rollout.tensor_parallel_size",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "rollout.tensor_parallel_size",
    "reward_funcs": "reward.functions",
    "adv_estimator": "algorithm.advantage_estimator",
    "beta": "algorithm.kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_coef": "algorithm.kl_loss_coef",
    "epsilon": "algorithm.clip_ratio_low",
    "eps_clip": "algorithm.clip_ratio_low",
    "ratio_clip_min": "algorithm.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_low": "algorithm.clip_ratio_low",
    "epsilon_high": "algorithm.clip_ratio_high",
    "eps_clip_high": "algorithm.clip_ratio_high",
    "ratio_clip_max": "algorithm.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_high": "algorithm.clip_ratio_high",
    "actor_rollout_ref.actor.loss_agg_mode": "algorithm.loss_agg_mode",
    "use_dynamic_sampling": "algorithm.dynamic_sampling",
    "grpo.use_dynamic_sampling": "algorithm.dynamic_sampling",
    "algorithm.filter_groups.enable": "algorithm.dynamic_sampling",
    "is_correction_type": "algorithm.importance_sampling.type",
    "tis_clip": "algorithm.importance_sampling.clip_high",
    "rollout_is_threshold": "algorithm.importance_sampling.clip_high",
    "vllm_importance_sampling_cap": "algorithm.importance_sampling.clip_high",
    "lr": "trainer.learning_rate",
    "actor_rollout_ref.actor.optim.lr": "trainer.learning_rate",
    "lr_scheduler_type": "trainer.lr_schedule",
    "clip_grad": "trainer.max_grad_norm",
    "max_tokens_per_mb": "trainer.max_tokens_per_gpu",
    "ppo_max_token_len_per_gpu": "trainer.max_tokens_per_gpu",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": "trainer.max_tokens_per_gpu",
    "num_rollout": "schedule.max_steps",
    "total_training_steps": "schedule.max_steps",
    "trainer.total_training_steps": "schedule.max_steps",
    "num_train_epochs": "schedule.num_epochs",
    "total_epochs": "schedule.num_epochs",
    "trainer.total_epochs": "schedule.num_epochs",
    "eval_steps": "eval_interval",
    "test_freq": "eval_interval",
    "trainer.test_freq": "eval_interval",
    "val_period": "eval_interval",
    "save_steps": "save_interval",
    "save_freq": "save_interval",
    "trainer.save_freq": "save_interval",
    "default_local_dir": "output_dir",
    "trainer.default_local_dir": "output_dir",
}
_REMARKS = {
    "epsilon": "; the upper range is algorithm.clip_ratio_high, with a default of its own",
    "eps_clip": "; the upper range is algorithm.clip_ratio_high, with a default of its own",
    "epsilon_high": "; it counts from 1 with every loss: for a ceiling of 5 with cispo write 4",
}
_CORRECTION = "set algorithm.importance_sampling.type to {} and algorithm.old_logprobs to 'recompute' instead"
_SAME_COMMAND = "leave it out: the same command continues an unfinished run, unless resume is 'never'"
_ADVICE = {
    "use_tis": _CORRECTION.format("'tis'"),
    "vllm_importance_sampling_correction": _CORRECTION.format("'tis'"),
    "rollout_is": _CORRECTION.format("'tis' (for token) or 'seq_tis' (for sequence)"),
    "rollout_correction": _CORRECTION.format("'tis' (for token) or 'seq_tis' (for sequence)"),
    "resume_mode": _SAME_COMMAND,
    "resume_from_checkpoint": _SAME_COMMAND,
}
"""What to write instead of a name that has no setting with the same meaning and unit."""


class AliasClash(ValueError):
    """A setting is given more than once, under different names."""


def canonical_names(values: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values under our dotted names, and a hint for each alias. Unknown names are kept as they are."""
    found: dict[str, Any] = {}
    origin: dict[str, str] = {}
    hints: list[str] = []
    for name, value in values.items():
        target = _meaning(name, known)
        if target in found:
            first, second = sorted((origin[target], name), key=lambda given: given != target)
            raise AliasClash(f"{first} and {second} both set {target}; give it once")
        if target != name:
            hints.append(f"hint: {name} is {target} here{_REMARKS.get(_bare(name), '')}")
        found[target], origin[target] = value, name
    return found, hints


def canonical_recipe(recipe: Mapping[str, Any], known: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Apply ``canonical_names`` to a tree of sections."""
    flat, hints = canonical_names(dict(flatten(recipe, known)), known)
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        put(tree, name, value)
    return tree, hints


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in a tree of sections."""
    *sections, key = name.split(".")
    place = tree
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise AliasClash(f"{section} is a section of settings, but it is given as {place!r}, and so is {name}")
    if isinstance(place.get(key), dict) and not isinstance(value, dict):
        raise AliasClash(f"{name} is a section of settings, but it is also given as {value!r}")
    place[key] = value


def _meaning(name: str, known: Collection[str]) -> str:
    if name in known:
        return name
    plain = name.replace("-", "_")
    section, _, key = plain.rpartition(".")
    if plain in ALIASES:
        return ALIASES[plain]
    target = ALIASES.get(key, "")
    return target if section and target.rpartition(".")[0] == section else name


def advice(name: str) -> str | None:
    """Return what to write instead of another system's name that is not an alias; None if nothing is known about it."""
    return _ADVICE.get(_bare(name))


def _bare(name: str) -> str:
    return name.replace("-", "_").rpartition(".")[2]


def flatten(section: Mapping[str, Any], known: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return (dotted name, value) of every setting in a tree. A setting whose value is a table counts as one value."""
    for key, value in section.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name not in known:
            yield from flatten(value, known, f"{name}.")
        else:
            yield name, value
