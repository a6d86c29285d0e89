"""Whether a run has a judge, as far as its settings tell."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.config.judge_use import may_use_judge, named_rewards, num_judge_models
from tailrace.config.settings import Settings

SOURCE = {"name": "one", "path": "builtin:arith-train", "reward": ["judge", "exact_match"]}


@pytest.mark.parametrize(
    ("given", "may_use", "num_models"),
    [
        ({}, False, 0),
        ({"reward": {"functions": ["exact_match"], "judge": {"workers": 4}}}, False, 0),
        (
            {"reward": {"functions": [{"function": "judge", "weight": 0.5}], "judge": {"model": "m", "workers": 4}}},
            True,
            4,
        ),
        ({"data": {"sources": [SOURCE]}, "reward": {"judge": {"model": "m"}}}, True, 1),
        ({"eval": [{"name": "e", "path": "builtin:arith-test", "reward": ["judge"]}]}, True, 1),
        ({"reward": {"judge": {"model": "m"}}}, True, 1),
        ({"reward": {"functions": ["judge"], "judge": {"model": "m", "url": "http://127.0.0.1:1/v1"}}}, True, 0),
        ({"reward": {"judge": {"url": "http://127.0.0.1:1/v1"}}}, True, 0),
    ],
)
def test_a_judge_is_expected_if_the_settings_name_or_describe_one(
    given: dict[str, Any], may_use: bool, num_models: int
) -> None:
    settings = Settings.model_validate(given)
    assert (may_use_judge(settings), num_judge_models(settings)) == (may_use, num_models)


def test_rewards_are_named_by_functions_sources_and_evaluation_sets() -> None:
    settings = Settings.model_validate(
        {
            "reward": {"functions": ["last_number"]},
            "data": {"sources": [SOURCE]},
            "eval": [{"name": "e", "path": "builtin:arith-test", "reward": ["code_tests", "judge"]}],
        }
    )
    assert named_rewards(settings) == ("last_number", "judge", "exact_match", "code_tests")
