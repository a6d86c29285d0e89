"""Nine systems' data and rewards run as they are: file, detection, reward process, score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from formats.scored import scores, training
from formats.systems import AREAL, OPENRLHF, QUESTIONS, SYSTEMS, TRL, VERL, System
from tailrace.config.load import check
from tailrace.config.settings import Settings
from tailrace.core.outcomes import Outcome

_NEEDS = {"parquet": "pyarrow", "saved": "datasets"}


def run_of(system: System, directory: Path, **reward: object) -> Settings:
    if system.form in _NEEDS:
        pytest.importorskip(_NEEDS[system.form])
    if system.reward.startswith("trl."):
        pytest.importorskip("trl")
        pytest.importorskip("math_verify")
    functions = [system.reward_spec(directory)]
    return check({"data": {"train": system.write(directory)}, "reward": {"functions": functions, **reward}})


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_systems_data_and_reward_run_unchanged(system: System, tmp_path: Path) -> None:
    settings = run_of(system, tmp_path)
    prompts = training(settings).prompts
    assert prompts.notes == (f"train: {system.note}",)
    assert len(prompts) == len(QUESTIONS)
    for (question, _), prompt in zip(QUESTIONS, prompts.prompts.values(), strict=True):
        assert question in prompt.text
    responses = [(index, system.response.format(text)) for index, text in [(0, "5"), (0, "24"), (1, "24")]]
    results = scores(settings, prompts, responses, tmp_path / "logs")
    assert [(result.outcome, result.detail) for result in results] == [(Outcome.OK, "")] * 3
    assert [result.score for result in results] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_all_columns_stay_available_to_rewards(system: System, tmp_path: Path) -> None:
    prompts = training(run_of(system, tmp_path)).prompts
    assert set(prompts.columns) == {*system.row(*QUESTIONS[0]), "prompt", "answer"}


def test_numbers_beside_the_score_are_extras(tmp_path: Path) -> None:
    settings = run_of(VERL, tmp_path)
    (result,) = scores(settings, training(settings).prompts, [(0, "5")], tmp_path / "logs")
    assert result.extras == {"acc": 1.0}
    settings = run_of(OPENRLHF, tmp_path)
    (result,) = scores(settings, training(settings).prompts, [(0, "5")], tmp_path / "logs")
    assert result.extras == {"num_labels": 1.0}


def test_a_function_that_does_not_apply_leaves_the_score_to_the_others(tmp_path: Path) -> None:
    """TRL's own accuracy reward has no opinion where the solution cannot be read as mathematics."""
    pytest.importorskip("trl")
    pytest.importorskip("math_verify")
    pytest.importorskip("datasets")
    path = tmp_path / "rows.jsonl"
    prompt = [{"role": "user", "content": "why?"}]
    path.write_text(json.dumps({"prompt": prompt, "solution": ""}) + "\n")
    functions = ["trl.rewards:accuracy_reward", {"function": "trl.rewards:think_format_reward", "weight": 0.5}]
    settings = check({"data": {"train": str(path)}, "reward": {"functions": functions}})
    prompts = training(settings).prompts
    thought, plain = scores(settings, prompts, [(0, "<think>hm</think> so"), (0, "so")], tmp_path / "logs")
    assert (thought.outcome, thought.score) == (Outcome.OK, 0.5)
    assert thought.extras == {"think_format_reward/score": 1.0}
    assert (plain.outcome, plain.score) == (Outcome.OK, 0.0)

    alone = check({"data": {"train": str(path)}, "reward": {"functions": functions[:1]}})
    (nothing,) = scores(alone, prompts, [(0, "so")], tmp_path / "logs")
    assert (nothing.outcome, nothing.detail) == (Outcome.ABSTAINED, "no reward function applies to this response")


def test_a_named_column_wins_over_detection(tmp_path: Path) -> None:
    settings = check({
        "data": {"train": AREAL.write(tmp_path), "prompt_column": "question", "answer_column": "question"}
    })  # fmt: skip
    prompts = training(settings).prompts
    assert prompts[0].text == "2 + 3 ="
    assert prompts[0].row["answer"] == "2 + 3 ="
    assert prompts.notes == ("train: prompt from 'question', answer from 'question'",)


def test_a_saved_dictionary_of_splits_is_read_by_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    splits = {name: datasets.Dataset.from_list([TRL.row(name, "1")]) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "both")
    for suffix, question in (("", "train"), (":test", "test")):
        prompts = training(check({"data": {"train": f"{tmp_path / 'both'}{suffix}"}})).prompts
        assert prompts[0].text == f"<user>{question}<assistant>"
    with pytest.raises(ValueError, match="has no split 'dev'; there are train, test"):
        training(check({"data": {"train": f"{tmp_path / 'both'}:dev"}}))
