"""Settings: what is accepted, and the words of what is refused (they are part of the interface)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tailrace.cli.main import main
from tailrace.config.declared import leaves
from tailrace.config.load import SettingsError, check, load, refuse_unknown
from tailrace.config.settings import Settings


def refusal(data: dict[str, object]) -> str:
    with pytest.raises(SettingsError) as caught:
        check(data)
    return str(caught.value)


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[rollout]\ntemperature = 0.5\nstop = ["END"]\n')
    (tmp_path / "a.yaml").write_text("rollout:\n  temperature: 0.5\n  stop: [END]\n")
    assert load(str(tmp_path / "a.toml")) == load(str(tmp_path / "a.yaml"))
    assert load(str(tmp_path / "a.toml")).rollout.stop == ("END",)


def test_overrides_win_over_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[rollout]\ntemperature = 0.5\n")
    settings = load(str(tmp_path / "a.toml"), {"rollout.temperature": "0.7", "reward.memory_mb": "null", "seed": "3"})
    assert (settings.rollout.temperature, settings.reward.memory_mb, settings.seed) == (0.7, None, 3)


def test_a_recipe_without_an_output_dir_gets_one_of_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("seed = 1\n")
    assert load(str(tmp_path / "mine.toml")).output_dir == Path("runs/mine")
    assert load("quickstart").output_dir == Path("runs/quickstart")


def test_one_reward_function_may_be_written_without_brackets() -> None:
    functions = check({"reward": {"functions": "my.py:f"}}).reward.functions
    assert functions is not None
    assert [entry.function for entry in functions] == ["my.py:f"]


def test_a_section_that_is_no_table_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('model = "x"\n')
    with pytest.raises(SettingsError, match="model is a section of settings, but it is given as 'x'"):
        load(str(tmp_path / "a.toml"), {"model.path": "y"})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().seed = 1  # type: ignore[misc]


ALGORITHM_RECIPES = ["quickstart-ppo", "quickstart-dapo", "quickstart-gspo", "quickstart-cispo"]


@pytest.mark.parametrize("name", ["quickstart", *ALGORITHM_RECIPES])
def test_built_in_recipes_are_valid(name: str) -> None:
    assert load(name).schedule.preset == "sync"


@pytest.mark.parametrize("name", ALGORITHM_RECIPES)
def test_an_algorithm_recipe_is_the_quickstart_but_for_its_algorithm(name: str) -> None:
    quickstart, variant = (load(recipe).model_dump(exclude={"output_dir"}) for recipe in ("quickstart", name))
    assert variant.pop("algorithm") != quickstart.pop("algorithm")
    assert variant == quickstart


def test_every_setting_says_what_it_means() -> None:
    assert [name for name, text in leaves(Settings) if not text] == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"rollout": {"temprature": 1}}, "unknown setting rollout.temprature; did you mean rollout.temperature?"),
        ({"learning_rate": 1e-3}, "unknown setting learning_rate; did you mean trainer.learning_rate?"),
        ({"trainr": {"betas": [0.9, 0.99]}}, "unknown setting trainr; did you mean trainer?"),
        ({"trainer": {"betas": [2, 3]}}, "trainer.betas.0: input should be less than 1, got 2"),
        ({"zzz": 1}, "unknown setting zzz; see `tailrace train --help-all` for all settings"),
        ({"trainer": {"temperature": 1}}, "unknown setting trainer.temperature; did you mean rollout.temperature?"),
        ({"model": {"threads": 1}}, "did you mean rollout.threads or reward.judge.threads or trainer.threads?"),
        ({"num_generatons": 4}, "did you mean num_generations? it is rollout.n_samples_per_prompt here"),
        ({"ray": {"local_cpus": 4}}, "unknown setting ray.local_cpus; it is gone: a Ray that the run starts has"),
        (
            {"eval": [{"name": "a", "path": "x", "tempratur": 0.5}]},
            "unknown setting eval.0.tempratur; did you mean temperature?",
        ),
        ({"rollout": {"top_p": 2}}, "rollout.top_p: input should be less than or equal to 1, got 2"),
        ({"eval_interval": 5}, "eval_interval is given but there is no evaluation set"),
        ({"eval": [{"name": "train", "path": "x"}]}, "an evaluation set cannot be called 'train'"),
        ({"eval": [{"name": "a", "path": "x"}] * 2}, "two evaluation sets are called 'a'"),
        ({"rollout": {"temperature": 0}}, "greedy responses of a prompt are all the same"),
        ({"rollout": {"n_samples_per_prompt": 1}}, "grpo compares the responses of a group"),
        ({"rollout": {"engine": "timed"}}, "takes as long as rollout.costs says: give rollout.costs"),
        ({"rollout": {"kv_tokens": 10}}, "rollout.kv_tokens (10) cannot hold one longest response (768 tokens"),
        ({"algorithm": {"importance_sampling": {"type": "tis"}}}, "set old_logprobs to 'recompute'"),
        (
            {"algorithm": {"importance_sampling": {"type": "icepop", "clip_low": 6}, "old_logprobs": "recompute"}},
            "algorithm.importance_sampling.clip_low (6.0) must be below clip_high (5.0)",
        ),
        (
            {"algorithm": {"advantage_estimator": "rloo"}, "rollout": {"n_samples_per_prompt": 1}},
            "rollout.n_samples_per_prompt is 1: rloo compares the responses of a group, so it needs at least 2",
        ),
        ({"algorithm": {"loss": "sapo", "clip_ratio_high": 0.3}}, "the loss 'sapo' has no clip; leave it out"),
        ({"algorithm": {"loss": "gspo", "clip_ratio_c": 3}}, "the loss 'gspo' has no dual clip; leave it out"),
        ({"algorithm": {"clip_ratio_c": 1.2}}, "algorithm.clip_ratio_c (1.2) must be above 1 + clip_ratio_high (1.28)"),
        ({"algorithm": {"clip_ratio_low": 1.5}}, "algorithm.clip_ratio_low is 1.5: a ratio is never below 0"),
        (
            {"algorithm": {"overlong": {"buffer_length": 600}}},
            "algorithm.overlong.buffer_length (600) is longer than rollout.max_response_length (512)",
        ),
        ({"rollout": {"deterministic": True}, "model": {"dtype": "bfloat16"}}, "needs model.dtype 'float32'"),
        (
            {"trainer": {"weight_channel": "cuda-ipc"}, "model": {"device": "cpu"}},
            "needs a GPU, but model.device is 'cpu'",
        ),
        (
            {"trainer": {"num_ranks": 4, "num_replicas": 2, "tensor_parallel_size": 4}},
            "must be a multiple of trainer.num_replicas (2) times trainer.tensor_parallel_size (4)",
        ),
        (
            {"trainer": {"num_ranks": 2, "tensor_parallel_size": 2}, "model": {"lora_rank": 8}},
            "model.lora_rank and trainer.tensor_parallel_size above 1 do not work together",
        ),
        (
            {"trainer": {"num_ranks": 2, "tensor_parallel_size": 2, "torch_compile": True}},
            "trainer.torch_compile does not work with trainer.tensor_parallel_size above 1",
        ),
    ],
)
def test_a_refusal_says_what_to_change(data: dict[str, object], words: str) -> None:
    assert words in refusal(data)


def test_all_mistakes_are_named_at_once() -> None:
    assert len(refusal({"aaa": 1, "rollout": {"top_p": 2}, "seed": -1}).splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], "cannot read the recipe nowhere.toml: No such file or directory"),
        (["nowhere"], "no recipe 'nowhere': neither a file nor a built-in recipe (code-cpu, long-tail, "),
        (["quickstart", "--rollout.temprature", "1"], "did you mean --rollout.temperature?"),
        (["quickstart", "--temprature=1"], "did you mean --rollout.temperature?"),
        (["quickstart", "+rollout.top_p=1"], "unexpected argument '+rollout.top_p=1'; write --rollout.top_p 1"),
    ],
)
def test_the_command_line_refuses_with_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_dry_run_prints_the_resolved_settings_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "quickstart", "--dry-run", "--show-settings", "--trainer.learning_rate", "1e-3"]) == 0
    assert json.loads(capsys.readouterr().out)["trainer"]["learning_rate"] == 1e-3


@pytest.mark.parametrize(("loss", "low", "high"), [("ppo", 0.2, 0.28), ("gspo", 3e-4, 4e-4), ("cispo", 1.0, 4.0)])
def test_a_clip_range_that_is_not_given_is_the_losss_own(loss: str, low: float, high: float) -> None:
    own = check({"algorithm": {"loss": loss}}).algorithm
    given = check({"algorithm": {"loss": loss, "clip_ratio_high": 0.5}}).algorithm
    assert (own.clip.low, own.clip.high) == (low, high)
    assert (given.clip.low, given.clip.high) == (low, 0.5)


@pytest.mark.parametrize("estimator", ["reinforce++", "gae"])
def test_estimators_that_compare_no_siblings_accept_groups_of_one(estimator: str) -> None:
    data = {"algorithm": {"advantage_estimator": estimator}, "rollout": {"n_samples_per_prompt": 1}}
    assert check(data).rollout.n_samples_per_prompt == 1


def test_a_run_that_only_generates_may_be_greedy_and_training_settings_do_not_bind_it() -> None:
    alone = {"schedule": {"preset": "rollout-only", "num_prompts": 3}}
    assert check(alone | {"rollout": {"temperature": 0.0, "n_samples_per_prompt": 1}}).schedule.num_prompts == 3
    assert "has nothing to evaluate" in refusal(
        alone | {"eval": [{"name": "a", "path": "a.jsonl"}], "eval_interval": 1}
    )
    assert "read by `tailrace rollout` only" in refusal({"schedule": {"num_prompts": 3}})


def test_rollouts_get_a_directory_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "quickstart", "--dry-run", "--show-settings", "--num-prompts", "3"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["output_dir"], shown["schedule"]["num_prompts"]) == ("runs/quickstart-rollout", 3)
    assert (shown["schedule"]["preset"], shown["eval"]) == ("rollout-only", [])


def test_a_mistyped_key_is_answered_with_a_setting_not_with_its_section() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting --schedule.prset; did you mean --schedule.preset\?"):
        refuse_unknown(["--schedule.prset"])
