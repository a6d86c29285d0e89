from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import RewardUse, ScoreResult, ScoreTask
from tailrace.rewards.scoring import InvalidScore, Scorer, read_score

TASK = ScoreTask(response_id=ResponseId(GroupId("train", 0, 1), 0), row={"prompt": "p", "answer": "2"}, response="2")


def score(directory: Path, *bodies: str) -> ScoreResult:
    """The result of functions f0, f1, ... with these bodies."""
    lines = ["import asyncio"]
    for number, body in enumerate(bodies):
        lines += [f"async def f{number}(response):" if "await" in body else f"def f{number}(response):", f"    {body}"]
    file = directory / "functions.py"
    file.write_text("\n".join(lines))
    numbers = range(len(bodies))
    names = [f"f{number}" if len(bodies) > 1 else "" for number in numbers]
    uses = [RewardUse(function=f"{file}:f{number}", label=names[number]) for number in numbers]
    with Scorer.load(uses) as scorer:
        return scorer.score(TASK)


def test_scores_of_several_functions_are_added_and_each_is_told_apart(tmp_path: Path) -> None:
    result = score(tmp_path, "return {'score': 1, 'acc': True}", "return -0.25", "await asyncio.sleep(0); return 2")
    assert (result.outcome, result.score) == (Outcome.OK, 2.75)
    assert result.extras == {"f0/score": 1.0, "f0/acc": 1.0, "f1/score": -0.25, "f2/score": 2.0}


def test_the_first_failing_function_decides_the_outcome(tmp_path: Path) -> None:
    result = score(tmp_path, "return 1", "return 'x'", "raise OSError('never reached')")
    assert (result.outcome, result.score) == (Outcome.INVALID, 0.0)
    assert "f1" in result.detail


def test_an_exception_is_described_with_its_place(tmp_path: Path) -> None:
    result = score(tmp_path, "raise KeyError('gone')")
    assert result.outcome is Outcome.ERROR
    assert "raised KeyError: 'gone' (" in result.detail
    assert "functions.py, line 3)" in result.detail


def test_an_asynchronous_function_that_raises_is_an_error_too(tmp_path: Path) -> None:
    assert score(tmp_path, "await asyncio.sleep(0); raise ValueError('late')").outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (1, (1.0, {})),
        (True, (1.0, {})),
        (np.float32(0.5), (0.5, {})),
        (np.array([2]), (2.0, {})),
        (np.bool_(True), (1.0, {})),
        (torch.tensor([0.25]), (0.25, {})),
        ({"score": 0.5, "acc": np.int64(1), "note": "text", "nan": float("nan")}, (0.5, {"acc": 1.0})),
    ],
)
def test_numbers_and_dicts_with_a_score_are_read(returned: object, expected: tuple) -> None:
    assert read_score(returned) == expected


@pytest.mark.parametrize(
    "returned",
    [None, "1", [1.0], float("inf"), float("nan"), {}, {"score": None}, np.ones(2), torch.ones(2), 1j, object()],
)
def test_anything_else_is_invalid(returned: object) -> None:
    with pytest.raises(InvalidScore):
        read_score(returned)


def test_scores_are_weighted_and_their_own_numbers_are_not(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text("def good(): return 0.5\ndef long(): return 2\n")
    uses = [
        RewardUse(function=f"{file}:good", label="good"),
        RewardUse(function=f"{file}:long", label="long", weight=-0.1),
    ]
    with Scorer.load(uses) as scorer:
        result = scorer.score(TASK)
    assert result.score == pytest.approx(0.3)
    assert result.extras == {"good/score": 0.5, "long/score": 2.0}


def test_only_the_functions_that_a_response_asks_for_are_called(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text("def good(): return 0.5\ndef never(): raise OSError\n")
    with Scorer.load([RewardUse(function=f"{file}:{name}", label=name) for name in ("good", "never")]) as scorer:
        for name in ("good", f"{file}:good"):
            result = scorer.score(replace(TASK, rewards=(name,), source="sums"))
            assert (result.outcome, result.score) == (Outcome.OK, 0.5)
            assert result.extras == {"good/score": 0.5, "source/sums": 0.5}
        assert scorer.score(TASK).outcome is Outcome.ERROR


def test_each_function_begins_with_its_own_limit(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text("def quick(): return 1\ndef slow(): return 2\n")
    uses = [RewardUse(function=f"{file}:quick", timeout_s=2.0), RewardUse(function=f"{file}:slow", timeout_s=30.0)]
    limits: list[float] = []
    with Scorer.load(uses) as scorer:
        assert scorer.score(TASK, on_call=limits.append).score == 3.0
    assert limits == [2.0, 30.0]


def test_a_part_of_which_no_function_applies_abstains(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text("def batched(prompts, completions): return [None]\n")
    with Scorer.load([RewardUse(function=f"{file}:batched")]) as scorer:
        assert scorer.score(TASK).outcome is Outcome.ABSTAINED


def test_no_function_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reward\.functions is empty"):
        Scorer.load([])
