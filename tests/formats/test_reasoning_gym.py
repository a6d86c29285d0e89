"""Generated tasks and their own scorers."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.scored import scores, training
from tailrace.config.load import check
from tailrace.core.outcomes import Outcome
from tailrace.data.rows import read_rows
from tailrace.rewards.assignment import RewardAssignment

pytest.importorskip("reasoning_gym")


def test_tasks_are_scored_by_their_own_scorer_unless_the_run_names_another(tmp_path: Path) -> None:
    settings = check({"data": {"train": "reasoning-gym:basic_arithmetic?size=3&seed=5"}})
    prompts = training(settings).prompts
    assert len(prompts) == 3
    assert prompts.notes == ()
    plan = RewardAssignment.make(settings, [prompts])
    assert plan.note == "rewards: reasoning_gym"
    answer = str(prompts[1].row["answer"])
    responses = [answer, f"well\n<answer>{answer}</answer>", f"#### {answer}", "<answer>no</answer>", ""]
    results = scores(settings, prompts, [(1, text) for text in responses], tmp_path)
    assert [result.outcome for result in results] == [Outcome.OK] * 5
    assert [result.score for result in results[:3]] == [1.0, 1.0, 1.0]
    assert max(result.score for result in results[3:]) < 0.1

    other = check({"reward": {"functions": ["exact_match"]}})
    assert RewardAssignment.make(other, [prompts]).note == "rewards: exact_match"


def test_a_spec_always_gives_the_same_rows_and_another_seed_gives_others() -> None:
    def rows(spec: str) -> list[object]:
        return [row for _, row in read_rows(f"reasoning-gym:{spec}")]

    first = rows("leg_counting?size=4")
    assert rows("leg_counting?size=4&seed=0") == first
    assert rows("leg_counting?size=4&seed=1") != first
    assert rows("leg_counting?size=2&min_animals=2&max_animals=2") != first[:2]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("leg_countin", "no task 'leg_countin'; near it are leg_counting"),
        ("leg_counting?sizes=3", "unexpected keyword argument 'sizes'"),
        ("leg_counting?size", r"written \?size=500&seed=0, got 'size'"),
        ("leg_counting?min_animals=0", "reasoning-gym:leg_counting"),
    ],
)
def test_a_mistake_is_one_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        list(read_rows(f"reasoning-gym:{spec}"))
    assert "\n" not in str(caught.value)
