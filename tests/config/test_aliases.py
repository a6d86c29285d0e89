"""Other systems' names: accepted with a hint, never beside the setting they mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.config import other_names
from tailrace.config.aliases import ALIASES, advice
from tailrace.config.declared import leaves
from tailrace.config.load import SettingsError, assemble, load, refuse_unknown
from tailrace.config.other_names import OTHER_NAMES, Instead
from tailrace.config.settings import Settings


def test_every_alias_means_a_setting_and_none_is_one() -> None:
    known = {name for name, _ in leaves(Settings)}
    assert [alias for alias, target in ALIASES.items() if target not in known] == []
    assert [alias for alias in ALIASES if alias in known] == []


def test_each_name_is_in_the_table_once() -> None:
    assert sum(len(names.split()) for names in other_names.TABLE.values()) == len(OTHER_NAMES)


def test_settings_that_a_piece_of_advice_names_exist() -> None:
    known = {name for name, _ in leaves(Settings)}
    sections = {name.partition(".")[0] for name in known if "." in name}
    texts = [answer.text for answer in OTHER_NAMES.values() if isinstance(answer, Instead)]
    named = {name for text in texts for name in re.findall(r"[a-z]+(?:\.[a-z_]+)+", text)}
    assert {name for name in named if name.partition(".")[0] in sections} <= known


TRL = """
    num_iterations gradient_accumulation_steps use_vllm vllm_mode vllm_gpu_memory_utilization scale_rewards
    loss_type per_device_train_batch_size steps_per_generation reward_weights report_to bf16 logging_steps
    mask_truncated_completions warmup_ratio num_generations beta epsilon delta importance_sampling_level
    repetition_penalty max_completion_length
"""
VERL = """
    data.val_files actor_rollout_ref.actor.ppo_mini_batch_size actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
    actor_rollout_ref.actor.entropy_coeff actor_rollout_ref.actor.use_kl_loss actor_rollout_ref.rollout.name
    actor_rollout_ref.rollout.gpu_memory_utilization actor_rollout_ref.actor.fsdp_config.optimizer_offload
    actor_rollout_ref.actor.fsdp_config.grad_offload actor_rollout_ref.ref.fsdp_config.param_offload
    algorithm.use_kl_in_reward trainer.n_gpus_per_node trainer.logger trainer.val_before_train data.train_files
    actor_rollout_ref.rollout.val_kwargs.temperature custom_reward_function.path trainer.nnodes
"""
SLIME = """
    colocate entropy-coef global-batch-size num-steps-per-rollout eval-prompt-data n-samples-per-eval-prompt rm-type
    custom-rm-path over-sampling-batch-size partial-rollout use-tis rollout-num-gpus actor-num-gpus-per-node save
    load tensor-model-parallel-size use-dynamic-batch-size kl-loss-type dynamic-sampling-filter-path hf-checkpoint
"""


@pytest.mark.parametrize("name", [*TRL.split(), *VERL.split(), *SLIME.split()])
def test_names_that_users_of_other_systems_know_are_answered(name: str) -> None:
    assert advice(name) is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("data.val_files", "add an [[eval]] table with name and path"),
        ("num_iterations", "is trained in one optimizer step, once"),
        ("ppo_mini_batch_size", "is trained in one optimizer step, once"),
        ("use_vllm", "set rollout.engine to 'vllm'"),
        ("gradient_accumulation_steps", "micro-batches of at most trainer.max_tokens_per_gpu tokens"),
        ("actor.entropy_coeff", "there is no entropy term in the loss"),
    ],
)
def test_an_unknown_name_of_another_system_is_refused_with_what_to_do(name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"unknown setting --{name}; ") + ".*" + re.escape(words)):
        refuse_unknown([f"--{name}=1"])


def test_each_setting_in_a_section_of_another_system_is_answered() -> None:
    theirs = {"actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 8, "grad_clip": 1}, "rollout": {"name": "vllm"}}}
    with pytest.raises(SettingsError) as caught:
        assemble(theirs, {}, hint=lambda line: None)
    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        "unknown setting actor_rollout_ref.actor.ppo_mini_batch_size",
        "unknown setting actor_rollout_ref.rollout.name",
    ]


def test_a_recipe_in_other_words_says_the_same_and_gives_hints(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(
        "model_name_or_path: tiny-arith\n"
        "num_generations: 4\n"
        "rollout: {max_new_tokens: 64, temperature: 0.5}\n"
        "beta: 0.1\n"
        "actor_rollout_ref: {actor: {optim: {lr: 0.001}}}\n"
        "data: {train_batch_size: 16}\n"
        "reward_funcs: [exact_match]\n"
    )
    (tmp_path / "ours.toml").write_text(
        '[model]\npath = "tiny-arith"\n'
        "[rollout]\nn_samples_per_prompt = 4\nmax_response_length = 64\ntemperature = 0.5\n"
        "[algorithm]\nkl_loss_coef = 0.1\n"
        "[trainer]\nlearning_rate = 0.001\n"
        "[schedule]\nrollout_batch_size = 16\n"
        '[reward]\nfunctions = ["exact_match"]\n'
    )
    hints: list[str] = []
    assert load(str(tmp_path / "theirs.yaml"), hint=hints.append) == load(
        str(tmp_path / "ours.toml"), {"output_dir": "runs/theirs"}
    )
    assert "hint: num_generations is rollout.n_samples_per_prompt here" in hints
    assert "hint: rollout.max_new_tokens is rollout.max_response_length here" in hints
    assert len(hints) == 7


def test_overrides_may_use_other_names_and_win_over_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[rollout]\nn_samples_per_prompt = 4\n")
    hints: list[str] = []
    settings = load(str(tmp_path / "a.toml"), {"num-generations": "6", "rollout.temperature": "0.5"}, hint=hints.append)
    assert settings.rollout.n_samples_per_prompt == 6
    assert hints == ["hint: num-generations is rollout.n_samples_per_prompt here"]


def test_values_from_a_program_may_be_dotted_names_or_sections() -> None:
    hints: list[str] = []
    recipe = {"rollout": {"n_samples_per_prompt": 4, "temperature": 0.5}}
    settings = assemble(recipe, {"rollout": {"group_size": 6}, "trainer.learning_rate": 0.1}, hint=hints.append)
    assert (settings.rollout.n_samples_per_prompt, settings.rollout.temperature) == (6, 0.5)
    assert settings.trainer.learning_rate == 0.1
    assert hints == ["hint: rollout.group_size is rollout.n_samples_per_prompt here"]


def test_hints_go_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    load(None, {"epsilon": "0.1"})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "hint: epsilon is algorithm.clip_ratio_low here; the upper range is algorithm.clip_ratio_high, with a default "
        "of its own\n"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "num_generations: 4\nrollout: {n_samples_per_prompt: 4}",
            "rollout.n_samples_per_prompt and num_generations both set rollout.n_samples_per_prompt; give it once",
        ),
        ("group_size: 4\nnum_generations: 8", "group_size and num_generations both set rollout.n_samples_per_prompt"),
        (
            "use_tis: true",
            "unknown setting use_tis; set algorithm.importance_sampling.type to 'tis' and algorithm.old_logprobs to "
            "'recompute' instead",
        ),
        (
            "algorithm: {rollout_correction: {rollout_is: token}}",
            "unknown setting algorithm.rollout_correction; set algorithm.importance_sampling.type to 'tis' (for token) "
            "or 'seq_tis' (for sequence) and algorithm.old_logprobs to 'recompute' instead",
        ),
        (
            "trainer: {resume_mode: auto}",
            "unknown setting trainer.resume_mode; leave it out: the same command continues an unfinished run, unless "
            "resume is 'never'",
        ),
        ("num_generatons: 4", "unknown setting num_generatons"),
        ("rollout: {beta: 0.1}", "unknown setting rollout.beta"),
        ("model: tiny-arith\nmodel_name_or_path: tiny-arith", "model is a section of settings, but it is given as"),
        ("model_name_or_path: tiny-arith\nmodel: tiny-arith", "model is a section of settings, but it is also given"),
    ],
)
def test_a_clash_or_a_slip_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SettingsError) as caught:
        load(str(tmp_path / "a.yaml"))
    assert str(caught.value).startswith(words)


def test_dynamic_sampling_has_the_names_of_others(tmp_path: Path) -> None:
    for text in ("use_dynamic_sampling: true", "algorithm: {filter_groups: {enable: true}}"):
        (tmp_path / "a.yaml").write_text(text)
        assert load(str(tmp_path / "a.yaml"), hint=lambda line: None).algorithm.dynamic_sampling


def test_the_upper_clip_range_is_said_to_count_from_1() -> None:
    hints: list[str] = []
    load(None, {"epsilon_high": "4", "algorithm.loss": "cispo"}, hint=hints.append)
    assert hints == [
        "hint: epsilon_high is algorithm.clip_ratio_high here; it counts from 1 with every loss: for a ceiling of 5 "
        "with cispo write 4"
    ]


def test_two_names_on_the_command_line_clash() -> None:
    with pytest.raises(SettingsError, match=r"^algorithm\.kl_loss_coef and beta both set"):
        load(None, {"beta": "0.1", "algorithm.kl_loss_coef": "0.1"})
