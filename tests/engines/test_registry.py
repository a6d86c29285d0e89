"""Settings and models that the chosen engine cannot serve are refused before work starts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from tailrace.config.settings import RolloutSettings, Settings
from tailrace.data.models import resolve_model
from tailrace.engines.contract import Capabilities, Unsupported
from tailrace.engines.registry import ENGINES, check_engine, engine_name, refusals

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
    assert {*named, "replay"} == set(ENGINES)
    assert {name: kind.capabilities.name for name, kind in ENGINES.items()} == {name: name for name in ENGINES}


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


def test_the_list_of_architectures_binds_only_the_native_engine(tmp_path: Path) -> None:
    foreign = shutil.copytree(TINY, tmp_path / "model")
    config = json.loads((foreign / "config.json").read_text()) | {"architectures": ["MambaForCausalLM"]}
    (foreign / "config.json").write_text(json.dumps(config))
    check_engine(settings(**REPLAYED), foreign)
    with pytest.raises(Unsupported) as refusal:
        check_engine(settings(), foreign)
    assert str(refusal.value) == (
        "the native engine does not support MambaForCausalLM; choose a model of LlamaForCausalLM, Qwen2ForCausalLM,"
        " Qwen3ForCausalLM; other engines: rollout.from_run, which takes the responses of a saved run"
    )
