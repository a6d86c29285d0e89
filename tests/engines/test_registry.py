"""Settings and models that the chosen engine cannot serve are refused before work starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from tailrace.config.rollout_settings import RolloutSettings
from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.engines.contract import Capabilities, Unsupported
from tailrace.engines.registry import ENGINES, check_engine, choose_engine, engine_name, refusals, with_chosen_engine
from tailrace.engines.vllm.models import parts_refusal
from tailrace.engines.vllm.versions import check_version, installed_version
from tailrace.workers.rollout_worker import STARTERS

TINY = resolve_model("tiny-arith")
NATIVE = ENGINES["native"].capabilities
REPLAYED = {"rollout": {"from_run": "runs/a"}}


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def refused(**sections: Any) -> str:
    with pytest.raises(Unsupported) as refusal:
        check_engine(settings(**sections), TINY)
    return str(refusal.value)


def test_every_engine_that_a_setting_names_is_known() -> None:
    named = get_args(RolloutSettings.model_fields["engine"].annotation)
    assert [engine_name(RolloutSettings(engine=name)) for name in named] == list(named)
    assert {*named, "replay"} == {*ENGINES, "auto"}
    assert {name: kind.capabilities.name for name, kind in ENGINES.items()} == {name: name for name in ENGINES}


def test_the_rollout_worker_starts_every_engine() -> None:
    assert set(STARTERS) == set(ENGINES)


@pytest.mark.parametrize(
    ("lacking", "asked", "sentence"),
    [
        (
            "has_deterministic_mode",
            {"rollout": {"deterministic": True}},
            "rollout.deterministic: the native engine has no deterministic mode; set it to false",
        ),
        (
            "releases_memory",
            {"schedule": {"placement": "colocated"}},
            "schedule.placement is 'colocated', but the native engine cannot release its memory while training runs;"
            " set it to 'shared'",
        ),
        (
            "releases_memory",
            {
                "schedule": {"stream": "always", "lending": "fixed"},
                "rollout": {"num_instances": 2},
                "trainer": {"num_ranks": 2, "num_replicas": 2},
            },
            "schedule.lending lends instances to training, but the native engine cannot release its memory while"
            " training runs; set it to 'never'",
        ),
        (
            "uses_weights",
            {"eval_interval": 1},
            "eval_interval is given, but responses of the native engine say nothing about the weights being trained;"
            " set it to null",
        ),
    ],
)
def test_a_setting_that_needs_what_the_engine_lacks_is_refused(
    lacking: str, asked: dict[str, Any], sentence: str
) -> None:
    assert list(refusals(settings(**asked), NATIVE)) == []
    assert list(refusals(settings(**asked), replace(NATIVE, **{lacking: False}))) == [sentence]
    assert list(refusals(settings(), replace(NATIVE, **{lacking: False}))) == []


def test_saved_responses_evaluate_nothing() -> None:
    assert "the replay engine say nothing about the weights being trained" in refused(**REPLAYED, eval_interval=1)


def test_a_deterministic_mode_without_keyed_randomness_cannot_be_declared() -> None:
    with pytest.raises(ValueError, match="without keyed randomness"):
        replace(NATIVE, has_keyed_randomness=False)


def test_an_engine_without_keyed_randomness_is_a_legal_engine() -> None:
    streaming: Capabilities = replace(NATIVE, name="other", has_keyed_randomness=False, has_deterministic_mode=False)
    assert list(refusals(settings(), streaming)) == []


def mamba(folder: Path) -> Path:
    """A model that the native engine does not run."""
    foreign = shutil.copytree(TINY, folder / "model")
    config = json.loads((foreign / "config.json").read_text()) | {"architectures": ["MambaForCausalLM"]}
    (foreign / "config.json").write_text(json.dumps(config))
    return foreign


AUTO = {"rollout": {"engine": "auto"}}


def test_auto_is_native_wherever_native_can_do_what_is_asked() -> None:
    assert choose_engine(settings(**AUTO), TINY, find_vllm=lambda: "0.32.0").engine == "native"
    assert with_chosen_engine(settings(**AUTO), TINY).engine == "native"


def test_auto_is_vllm_for_models_and_settings_that_only_vllm_can_serve(tmp_path: Path) -> None:
    choice = choose_engine(settings(**AUTO), mamba(tmp_path), find_vllm=lambda: "0.32.0")
    assert choice.engine == "vllm"
    assert str(choice.reason).startswith("the native engine does not support MambaForCausalLM")
    assert str(choice.reason).endswith("vLLM 0.32.0 is installed")
    split = settings(rollout={"engine": "auto", "tensor_parallel_size": 2})
    assert choose_engine(split, TINY, find_vllm=lambda: "0.26.0").engine == "vllm"


@pytest.mark.parametrize(
    ("version", "reason"), [(None, "is not installed"), ("0.41.2", "but vLLM 0.41.2 is installed")]
)
def test_auto_stays_native_without_a_vllm_that_can_be_used(tmp_path: Path, version: str | None, reason: str) -> None:
    choice = choose_engine(settings(**AUTO), mamba(tmp_path), find_vllm=lambda: version)
    assert choice.engine == "native"
    assert reason in str(choice.reason)


def test_a_choice_that_the_settings_make_needs_no_reason() -> None:
    assert choose_engine(settings(), TINY) == ("native", None)
    assert choose_engine(settings(**REPLAYED), TINY) == ("replay", None)


@pytest.mark.parametrize("version", ["0.26.0", "0.27.1", "0.32.0", "0.32.1+cpu"])
def test_versions_of_vllm_that_are_supported(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.25.1", "0.33.0", "1.0.0"])
def test_other_versions_of_vllm_are_refused(version: str) -> None:
    with pytest.raises(Unsupported, match=rf"supports vLLM 0\.26 to 0\.32, but vLLM {version} is installed"):
        check_version(version)


@pytest.mark.skipif(installed_version() is not None, reason="vLLM is installed")
def test_vllm_without_the_package_is_refused_with_a_way_to_install_it() -> None:
    assert "pip install 'tailrace[vllm]'" in refused(rollout={"engine": "vllm"})


def test_vllm_cannot_release_memory_on_a_cpu() -> None:
    on = {device: ENGINES["vllm"].capabilities_on(device).releases_memory for device in ("cpu", "cuda:1")}
    assert on == {"cpu": False, "cuda:1": True}


def test_a_model_is_divided_only_by_engines_that_can() -> None:
    assert "rollout.tensor_parallel_size is 2, but the native engine uses at most 1" in refused(
        rollout={"tensor_parallel_size": 2}
    )


def test_a_refusal_of_the_engine_that_auto_took_says_why_not_the_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_engine, "__kwdefaults__", {"find_vllm": lambda: None})
    text = refused(rollout={"engine": "auto", "tensor_parallel_size": 2})
    assert "the native engine uses at most 1; vllm is no choice: the vllm engine needs vLLM" in text


@pytest.mark.parametrize(
    ("num_parts", "heads", "kv_heads", "words"),
    [
        (2, 9, 3, "the model has 9 attention heads, which cannot be divided by 2"),
        (4, 8, 6, "the model has 6 key and value heads"),
        (8, 16, 4, None),  # two devices hold the same one
        (3, 12, 3, "the model has 128 columns in an MLP"),
        (4, 8, None, None),
    ],
)
def test_vllm_divides_heads_and_mlps_evenly(
    num_parts: int, heads: int, kv_heads: int | None, words: str | None
) -> None:
    config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": 128}
    found = parts_refusal(config, num_parts)
    assert (found is None) if words is None else (words in str(found))


def test_a_model_that_vllm_cannot_divide_is_refused_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.engines.vllm.versions.installed_version", lambda: "0.32.0")
    assert "which cannot be divided by 7" in refused(rollout={"engine": "vllm", "tensor_parallel_size": 7})


def test_the_list_of_architectures_binds_only_the_native_engine(tmp_path: Path) -> None:
    foreign = mamba(tmp_path)
    check_engine(settings(**REPLAYED), foreign)
    with pytest.raises(Unsupported) as refusal:
        check_engine(settings(), foreign)
    assert str(refusal.value) == (
        "the native engine does not support MambaForCausalLM; choose a model of LlamaForCausalLM, Qwen2ForCausalLM,"
        " Qwen3ForCausalLM; other engines: rollout.engine = 'vllm', rollout.from_run, which takes the responses of a"
        " saved run"
    )


def mixture(folder: Path) -> Path:
    """A mixture of experts, as its configuration says."""
    model = shutil.copytree(TINY, folder / "mixture")
    changes = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "head_dim": 32}
    config = json.loads((model / "config.json").read_text()) | changes
    (model / "config.json").write_text(json.dumps(config))
    return model


def test_auto_is_vllm_for_a_mixture_of_experts(tmp_path: Path) -> None:
    choice = choose_engine(settings(**AUTO), mixture(tmp_path), find_vllm=lambda: "0.32.0")
    assert choice.engine == "vllm"
    assert str(choice.reason).startswith("the native engine does not support Qwen3MoeForCausalLM")
    with pytest.raises(Unsupported, match="the native engine does not support Qwen3MoeForCausalLM"):
        check_engine(settings(), mixture(tmp_path / "other"))


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"trainer": {"replay_routing": True}}, "trainer.replay_routing"),
        ({"rollout": {"return_routing": "always"}}, "rollout.return_routing = 'always'"),
    ],
)
def test_experts_of_tokens_are_refused_by_engines_and_models_that_have_none(asked: dict[str, Any], named: str) -> None:
    assert refused(**asked) == f"{named}: the native engine does not return the experts of tokens"
    replayed = {**asked, "rollout": {**asked.get("rollout", {}), "from_run": "runs/a"}}
    assert refused(**replayed) == f"{named} is for mixtures of experts, and the model in {TINY} is none"
    assert list(refusals(settings(**asked), ENGINES["vllm"].capabilities)) == []


def test_replay_contradicts_a_rollout_that_returns_no_experts() -> None:
    asked = settings(trainer={"replay_routing": True}, rollout={"return_routing": "never"})
    assert list(refusals(asked, ENGINES["vllm"].capabilities)) == [
        "trainer.replay_routing needs the experts that the rollout chose, but rollout.return_routing is 'never'"
    ]


def test_replay_makes_the_rollout_return_experts() -> None:
    assert with_chosen_engine(settings(), TINY).return_routing == "auto"
    assert with_chosen_engine(settings(trainer={"replay_routing": True}), TINY).return_routing == "always"


def test_the_timed_engine_takes_any_model_with_a_vocabulary(tmp_path: Path) -> None:
    timed = {"rollout": {"engine": "timed", "costs": {"k4": 0.03}}}
    foreign = mamba(tmp_path)
    check_engine(settings(**timed), foreign)
    config = json.loads((foreign / "config.json").read_text())
    del config["vocab_size"]
    (foreign / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="lacks 'vocab_size'"):
        check_engine(settings(**timed), foreign)
    assert "the timed engine say nothing about the weights" in refused(**timed, eval_interval=1)
