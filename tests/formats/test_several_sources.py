"""Several training sources in one run: shares, rewards of their own, numbers of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from formats.scored import scores, training
from tailrace.config.load import check
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Outcome
from tailrace.rewards.assignment import RewardAssignment

REWARDS = """
def runs(response, test_cases):
    return {"score": float(response == test_cases), "num_cases": 1}

def brief(response):
    return 1 / max(len(response), 1)
"""


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def two_sources(directory: Path, **changes: object) -> Settings:
    rewards = directory / "rewards.py"
    rewards.write_text(REWARDS)
    sums = write(directory / "sums.jsonl", [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(6)])
    code = write(directory / "code.jsonl", [{"prompt": f"print {n}", "test_cases": str(n)} for n in range(2)])
    sources = [
        {"name": "sums", "path": sums, "weight": 1, "reward": "exact_match"},
        {"name": "code", "path": code, "weight": 1, "reward": ["runs", "brief"]},
    ]
    functions = [{"function": f"{rewards}:runs", "weight": 2.0}, f"{rewards}:brief"]
    return check({"data": {"sources": sources, **changes}, "reward": {"functions": functions}})


def test_each_source_is_scored_by_its_own_functions_and_has_its_own_numbers(tmp_path: Path) -> None:
    settings = two_sources(tmp_path)
    prompts = training(settings).prompts
    assert prompts.notes == (
        f"sums: 6 prompts from {tmp_path / 'sums.jsonl'}, 50.0%",
        f"code: 2 prompts from {tmp_path / 'code.jsonl'}, 50.0%",
        "sums: prompt from 'question', answer from 'answer'",
    )
    assert [prompts[index].source for index in prompts.indices] == ["sums"] * 6 + ["code"] * 2
    right_sum, wrong_sum, right_code = scores(settings, prompts, [(0, "1"), (0, "22"), (7, "1")], tmp_path / "logs")
    assert (right_sum.score, right_sum.extras) == (1.0, {"exact_match/score": 1.0, "source/sums": 1.0})
    assert (wrong_sum.score, wrong_sum.extras) == (0.0, {"exact_match/score": 0.0, "source/sums": 0.0})
    assert right_code.score == 3.0
    assert right_code.extras == {
        "runs/score": 1.0, "runs/num_cases": 1.0, "brief/score": 1.0, "source/code": 3.0
    }  # fmt: skip


def test_a_function_is_checked_against_the_columns_of_its_own_prompts_only(tmp_path: Path) -> None:
    settings = two_sources(tmp_path)
    plan = RewardAssignment.make(settings, [training(settings).prompts])
    columns = {use.function.rpartition(":")[2]: use.columns for use in plan.uses}
    assert columns["runs"] == ("prompt", "test_cases")
    assert set(columns["exact_match"]) == {"question", "answer", "prompt"}


def test_batches_hold_the_sources_by_their_weights_and_small_sources_begin_again(tmp_path: Path) -> None:
    mixed = training(two_sources(tmp_path))
    offer = mixed.order.ids(0, 0, 8)
    sources = [mixed.prompts[index].source for _, index in offer.prompts]
    assert sources == ["sums", "code"] * 4
    assert [epoch for epoch, index in offer.prompts if mixed.prompts[index].source == "code"] == [0, 0, 1, 1]
    assert len(set(offer.prompts)) == 8


def test_a_row_names_its_reward(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "answer": "5", "reward": "exact_match"},
        {"prompt": "b", "answer": "5", "reward": ["brief"]},
        {"prompt": "c", "answer": "5"},
        {"prompt": "d", "answer": "5", "reward": 0.5},
    ]
    (tmp_path / "rewards.py").write_text(REWARDS)
    functions = [f"{tmp_path / 'rewards.py'}:brief"]
    settings = check({"data": {"train": write(tmp_path / "a.jsonl", rows)}, "reward": {"functions": functions}})
    prompts = training(settings).prompts
    results = scores(settings, prompts, [(index, "#### 5") for index in range(4)], tmp_path / "logs")
    assert [result.outcome for result in results] == [Outcome.OK] * 4
    assert [result.score for result in results] == [1.0, 1 / 6, 1 / 6, 1 / 6]


def test_data_cannot_name_code_that_the_settings_do_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "reward": "os:system"}])
    settings = check({"data": {"train": path}})
    with pytest.raises(ValueError, match=r"a row of train names the reward 'os:system'.*add it to reward\.functions"):
        RewardAssignment.make(settings, [training(settings).prompts])


def test_without_any_setting_prompts_are_scored_by_exact_match(tmp_path: Path) -> None:
    settings = check({"data": {"train": write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "5"}])}})
    assert RewardAssignment.make(settings, [training(settings).prompts]).note == "rewards: exact_match"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"sources": [{"name": "a", "path": "x"}] * 2}, "data: two sources are called 'a'; give each a name"),
        (
            {"train": "y", "sources": [{"name": "a", "path": "x"}]},
            "data: give either train ('y') or sources (a), not both",
        ),
        (
            {"sources": [{"name": "a", "path": "x"}, {"name": "b", "path": "x", "weight": 1}]},
            "data: give every source a weight, or none: a has none",
        ),
        ({"sources": [{"name": "a", "path": "x", "weight": 0}]}, "data.sources.0.weight: input should be greater"),
    ],
)
def test_sources_that_do_not_fit_together_are_refused(data: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match="data") as caught:
        check({"data": data})
    assert str(caught.value).startswith(sentence)


def test_the_fingerprint_of_a_mixture_tells_sources_and_rewards_apart(tmp_path: Path) -> None:
    settings = two_sources(tmp_path)
    sources = [source.model_dump() for source in settings.data.sources]
    renamed = [sources[0] | {"name": "other"}, sources[1]]
    rewarded = [sources[0] | {"reward": ["brief"]}, sources[1]]
    variants = [settings, *(two_sources(tmp_path, sources=variant) for variant in (renamed, rewarded))]
    assert len({training(variant).prompts.fingerprint() for variant in variants}) == 3
