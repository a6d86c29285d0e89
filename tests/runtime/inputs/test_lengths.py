"""Responses that outgrow the model's positions are refused before the start; a run that has begun is warned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.main import main
from tailrace.commands.train import prepare
from tailrace.config.load import SettingsError, load
from tailrace.data.models import resolve_model

POSITIONS = 64
LONGEST = len("1+2+3+4=") + 1
"""Tokens of the longest prompt: one for each character, and the one that begins a text."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of tiny-arith that has few positions."""
    folder = tmp_path / "model"
    shutil.copytree(resolve_model("tiny-arith"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
    return folder


def prompts(path: Path, *texts: str) -> str:
    path.write_text("".join(json.dumps({"prompt": text, "answer": "1"}) + "\n" for text in texts))
    return str(path)


def overrides(tmp_path: Path, model: Path, **changes: Any) -> dict[str, str]:
    given = {
        "model.path": str(model),
        "model.device": "cpu",
        "data.train": prompts(tmp_path / "train.jsonl", "1+2=", "1+2+3+4="),
        "output_dir": str(tmp_path / "run"),
        "schedule.rollout_batch_size": 2,
        "eval": [],
        "eval_interval": None,
    } | {name.replace("__", "."): value for name, value in changes.items()}
    return {name: json.dumps(value) for name, value in given.items()}


ENGINES = [
    {"rollout__engine": "native"},
    {"rollout__engine": "timed", "rollout__costs__k4": 0.01, "rollout__deterministic": False},
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine["rollout__engine"])
def test_a_run_whose_responses_outgrow_the_models_positions_is_refused_before_it_starts(
    engine: dict[str, Any], tmp_path: Path, model: Path
) -> None:
    long = load("quickstart", overrides(tmp_path, model, rollout__max_response_length=900, **engine))
    with pytest.raises(SettingsError, match=r"the model has 64 positions .* is 900: 909 together"):
        prepare(long)


def test_the_longest_prompt_in_use_counts_not_the_longest_allowed(tmp_path: Path, model: Path) -> None:
    fits = overrides(tmp_path, model, rollout__max_response_length=POSITIONS - LONGEST, data__max_prompt_length=4096)
    sources = prepare(load("quickstart", fits))
    assert [(each.source, each.longest_prompt, each.total) for each in sources.lengths] == [
        ("train", LONGEST, POSITIONS)
    ]
    with pytest.raises(SettingsError) as refused:
        prepare(load("quickstart", fits | {"rollout.max_response_length": str(POSITIONS - LONGEST + 1)}))
    assert str(refused.value) == (
        "the model has 64 positions (max_position_embeddings), but the longest prompt of 'train' has 9 tokens and"
        " rollout.max_response_length is 56: 65 together; set rollout.max_response_length to at most 55, or set"
        " data.max_prompt_length lower, which leaves out longer prompts"
    )
    assert prepare(load("quickstart", fits | {"data.max_prompt_length": "5", "rollout.max_response_length": "59"}))


def test_every_evaluation_set_is_held_to_the_positions_with_its_own_response_length(
    tmp_path: Path, model: Path
) -> None:
    long = prompts(tmp_path / "long.jsonl", "+".join("1" * 16) + "=")
    sets = [
        {"name": "fits", "path": long, "max_response_length": 31},
        {"name": "inherits", "path": long},
        {"name": "own", "path": long, "max_response_length": 40},
    ]
    given = overrides(tmp_path, model, rollout__max_response_length=55, eval=sets, eval_interval=1)
    with pytest.raises(SettingsError) as refused:
        prepare(load("quickstart", given))
    first, second = str(refused.value).split("\n")
    assert "longest prompt of 'inherits' has 33 tokens and rollout.max_response_length is 55: 88 together" in first
    assert "'own' has 33 tokens and max_response_length of [[eval]] 'own' is 40: 73 together" in second


def test_rope_scaling_counts_and_a_model_without_a_limit_is_not_refused(tmp_path: Path, model: Path) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text())
    long = load("quickstart", overrides(tmp_path, model, rollout__max_response_length=200))
    path.write_text(json.dumps(config | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e3}}))
    assert prepare(long).positions is not None
    del config["max_position_embeddings"]
    path.write_text(json.dumps(config))
    assert prepare(long).positions is None


@pytest.mark.parametrize("verb", ["train", "rollout"])
def test_the_command_refuses_with_exit_code_2_and_leaves_no_directory(
    verb: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = overrides(tmp_path, model, rollout__max_response_length=900)
    arguments = [part for name, value in given.items() for part in (f"--{name}", value)]
    assert main([verb, "quickstart", *arguments]) == 2
    assert "rollout.max_response_length is 900: 909 together" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_begun_is_continued_with_a_warning(tmp_path: Path, model: Path) -> None:
    long = load("quickstart", overrides(tmp_path, model, rollout__max_response_length=900))
    notes = prepare(long, has_begun=True).notes
    (warning,) = (note for note in notes if note.startswith("warning: "))
    assert warning == (
        "warning: the model has 64 positions (max_position_embeddings), but the longest prompt of 'train' has 9 tokens"
        " and rollout.max_response_length is 900: 909 together; a new run would be refused"
    )


def test_vllm_makes_room_for_no_more_than_the_positions_unless_a_begun_run_needs_it(
    tmp_path: Path, model: Path
) -> None:
    fits = load("quickstart", overrides(tmp_path, model, rollout__max_response_length=40))
    sources = prepare(fits)
    assert sources.engine_length(fits, "vllm") == POSITIONS
    assert sources.engine_length(fits, "native") == fits.data.max_prompt_length + 40
    long = load("quickstart", overrides(tmp_path, model, rollout__max_response_length=90))
    assert prepare(long, has_begun=True).engine_length(long, "vllm") == 90 + LONGEST
