"""Settings of a judge that do not work together are refused in a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.config.continuation import Difference, may_change
from tailrace.config.load import SettingsError, assemble, load
from tailrace.config.rules import broken_rules
from tailrace.config.settings import Settings

URL = {"url": "http://10.0.0.1:8000/v1", "model": "a"}


def refusals(judge: dict[str, Any], **rest: Any) -> list[str]:
    return broken_rules(Settings.model_validate({"reward": {"functions": ("judge",), "judge": judge}, **rest}))


@pytest.mark.parametrize(
    "judge",
    [
        {"model": "a"},
        {"model": "a", "answers": {}, "reply": "{response}", "prompt": "{prompt}"},
        {"model": "a", "memory_gb": 3, "placement": "own"},
        URL,
        URL | {"reading": "text"},
        URL | {"url": "https://example.com"},
    ],
)
def test_settings_that_work(judge: dict[str, Any]) -> None:
    assert refusals(judge) == []


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ({}, "set reward.judge.model to a directory or a Hugging Face id"),
        ({"url": URL["url"]}, "set reward.judge.model to the name that the server knows"),
        ({"model": "a", "reading": "text"}, "reward.judge.reading 'text' needs a server"),
        ({"model": "a", "prompt": "{prompt}"}, "needs the field {response}"),
        ({"model": "a", "answers": {"Yes": 1}}, "every score would be the same"),
        (URL | {"answers": {}}, "a server (reward.judge.url) has none"),
        (URL | {"memory_gb": 3}, "leave it out with reward.judge.url"),
        (URL | {"placement": "own"}, "leave it out with reward.judge.url"),
        *[
            (URL | {"url": url}, "write an address such as")
            for url in ("localhost:8000", "http://", "http://a:b/v1", "http://a/v1?x=1", "http://a b", "ftp://a")
        ],
    ],
)
def test_settings_that_do_not(judge: dict[str, Any], words: str) -> None:
    [sentence] = refusals(judge)
    assert words in sentence


@pytest.mark.parametrize(
    "name",
    [
        "reward.judge.timeout_s",
        "reward.timeout_s",
        "reward.code_tests.timeout_s",
        "reward.code_tests.case_timeout_s",
        "reward.code_tests.min_case_timeout_s",
    ],
)
@pytest.mark.parametrize("seconds", [".inf", "1.0e+300", ".nan"])
def test_a_time_limit_is_at_most_a_million_seconds(name: str, seconds: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: input should be "):
        load("code-cpu", {name: seconds})


def test_so_is_the_limit_of_a_function() -> None:
    function = {"function": "exact_match", "timeout_s": float("inf")}
    with pytest.raises(SettingsError, match=r"timeout_s: input should be less than or equal to 1000000, got inf"):
        assemble({"reward": {"functions": [function]}}, {})


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ('{"Yes": .inf, "No": 0}', "reward.judge.answers.Yes: input should be a finite number, got inf"),
        ('{"Yes": 1, "No": .nan}', "reward.judge.answers.No: input should be a finite number, got nan"),
        *[
            (text, 'write JSON, for example {"Yes": 1, "No": 0}')
            for text in ('{"1"=1.0}', '{"1"=1.0, "2"=0.0}', "{a=1, b=0}", "a=1", "{Yes: 1, No: 0}", '["Yes", "No"]')
        ],
    ],
)
def test_answers_that_are_no_words_with_numbers(answers: str, words: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        load("code-cpu", {"reward.judge.answers": answers})
    assert words in str(refusal.value)


def test_a_memory_limit_needs_a_gpu() -> None:
    [sentence] = refusals({"model": "a", "memory_gb": 3}, model={"device": "cpu"})
    assert "limits the memory of a GPU, but model.device is 'cpu'" in sentence


def test_a_judge_that_only_a_source_or_an_evaluation_set_names_needs_a_model_too() -> None:
    reward: dict[str, Any] = {"reward": {"functions": ("exact_match",)}}
    source = {"name": "a", "path": "a.jsonl", "reward": "judge"}
    of_source = Settings.model_validate(reward | {"data": {"sources": (source,)}})
    of_evaluation = Settings.model_validate(reward | {"eval": (source,), "eval_interval": 1})
    for settings in (of_source, of_evaluation):
        [sentence] = broken_rules(settings)
        assert "needs a model" in sentence


@pytest.mark.parametrize("name", ["workers", "placement", "memory_gb", "max_pass_tokens", "max_requests", "profile"])
def test_where_and_in_which_pieces_a_judge_computes_may_change(name: str) -> None:
    assert may_change(f"reward.judge.{name}")


@pytest.mark.parametrize(
    ("name", "is_on_request"),
    [("timeout_s", True), ("url", True), ("model", False), ("prompt", False), ("answers.Yes", False), ("dtype", False)],
)
def test_what_decides_the_scores_may_not(name: str, is_on_request: bool) -> None:
    assert not may_change(f"reward.judge.{name}")
    assert Difference(name=f"reward.judge.{name}", value=1, before=2).is_on_request is is_on_request


@pytest.mark.parametrize("name", ["code_tests", "judge"])
def test_a_limit_that_would_have_no_effect_is_refused_with_the_one_that_has(name: str) -> None:
    judge = {"reward.judge.model": "m"} if name == "judge" else {}
    functions = json.dumps([{"function": name, "timeout_s": 3.0}])
    with pytest.raises(
        SettingsError, match=rf"'{name}' in reward.functions has no effect: set reward.{name}.timeout_s"
    ):
        load("quickstart", {"reward.functions": functions, **judge})
