"""A run that is continued with other evaluation sets is held to the rules of a new run where these sets are concerned,
and warned of what it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.inputs.test_lengths import model, overrides, prompts  # noqa: F401  model is a fixture
from runtime.record.test_run_directory import begin
from tailrace.commands.preflight.dry_run import dry_run
from tailrace.commands.train import prepare_in, train
from tailrace.config.load import SettingsError, load
from tailrace.runtime.record.run_directory import RunDirectory

HELDOUT = {"name": "heldout", "path": "builtin:arith-heldout", "max_prompts": 4}


def continued(given: dict[str, str], **changes: Any) -> list[str]:
    """What a run that was begun as given and is continued with these changes is warned of."""
    begin(load("quickstart", given))
    values = {name: json.dumps(value) for name, value in changes.items()}
    settings = load("quickstart", given | values | {"resume": "with-changes"})
    directory = RunDirectory.open(settings)
    try:
        return [note for note in prepare_in(directory, settings).notes if note.startswith("warning: ")]
    finally:
        directory.close()


def short(tmp_path: Path) -> dict[str, Any]:
    """An evaluation set that fits the model."""
    return {"name": "short", "path": prompts(tmp_path / "short.jsonl", "1+2=")}


@pytest.fixture
def too_long(tmp_path: Path) -> dict[str, Any]:
    """An evaluation set that outgrows the model."""
    path = prompts(tmp_path / "long.jsonl", "+".join("1" * 16) + "=")
    return {"name": "long", "path": path, "max_response_length": 40}


@pytest.fixture
def given(tmp_path: Path, model: Path) -> dict[str, str]:  # noqa: F811
    return overrides(tmp_path, model, rollout__max_response_length=50, eval=[short(tmp_path)], eval_interval=1)


def test_a_new_evaluation_set_that_outgrows_the_model_is_refused(
    given: dict[str, str], too_long: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=r"the longest prompt of 'long' has 33 tokens .* 73 together; set"):
        continued(given, eval=[short(tmp_path), too_long])


def test_a_changed_evaluation_set_that_outgrows_the_model_is_refused(
    given: dict[str, str], too_long: dict[str, Any]
) -> None:
    fits = json.dumps([too_long | {"max_response_length": 10}])
    with pytest.raises(SettingsError, match="73 together"):
        continued(given | {"eval": fits}, eval=[too_long])


def test_a_set_that_was_not_evaluated_and_outgrows_the_model_is_refused(
    given: dict[str, str], too_long: dict[str, Any]
) -> None:
    with pytest.raises(SettingsError, match="73 together"):
        continued(given | {"eval": json.dumps([too_long]), "eval_interval": "null"}, eval_interval=1)


def test_a_set_that_the_run_has_had_is_no_reason_to_refuse(
    given: dict[str, str], too_long: dict[str, Any], tmp_path: Path
) -> None:
    old = given | {"eval": json.dumps([too_long])}
    changes = {"eval": [short(tmp_path), too_long], "eval_interval": 2, "schedule.max_steps": 9}
    (warning,) = continued(old, **changes)
    assert "the longest prompt of 'long' has 33 tokens" in warning


def test_the_command_and_its_dry_run_refuse_it_too(given: dict[str, str], too_long: dict[str, Any]) -> None:
    begin(load("quickstart", given))
    settings = load("quickstart", given | {"eval": json.dumps([too_long]), "resume": "with-changes"})
    for command in (train, dry_run):
        with pytest.raises(SettingsError, match="73 together"):
            command(settings, lambda line: None)


def test_a_new_evaluation_set_without_eval_interval_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("schedule.rollout_batch_size = 4\nmodel.device = 'cpu'\n")
    output = {"output_dir": str(tmp_path / "run")}
    begin(load(str(recipe), output))
    sets = output | {"eval": json.dumps([HELDOUT, HELDOUT | {"name": "other"}])}
    settings = load(str(recipe), sets | {"resume": "with-changes"})
    directory = RunDirectory.open(settings)
    with pytest.raises(SettingsError, match="evaluation sets 'heldout', 'other' would never be evaluated"):
        prepare_in(directory, settings)
    directory.close()
    settings = load(str(recipe), sets | {"resume": "with-changes", "eval_interval": "null"})
    directory = RunDirectory.open(settings)
    assert prepare_in(directory, settings)
    directory.close()
