"""Evaluation sets that would never be evaluated: refused if `eval_interval` was forgotten, said if it is null."""

from __future__ import annotations

import json

import pytest

from tailrace.commands.train import prepare
from tailrace.config.load import SettingsError, assemble, load
from tailrace.config.settings import Settings

HELDOUT = {"name": "heldout", "path": "builtin:arith-heldout", "max_prompts": 4}
FORGOTTEN = {"schedule": {"rollout_batch_size": 4}, "model": {"device": "cpu"}, "eval": [HELDOUT]}


def test_an_evaluation_set_without_eval_interval_is_refused() -> None:
    with pytest.raises(SettingsError) as refused:
        prepare(assemble(FORGOTTEN, {}))
    assert str(refused.value) == (
        "evaluation set 'heldout' would never be evaluated, because eval_interval is not given; set eval_interval to a"
        " number of steps, or remove the [[eval]] table (--eval_interval null keeps it unused)"
    )


def test_a_run_that_has_begun_with_an_unused_evaluation_set_is_continued_with_a_warning() -> None:
    notes = prepare(assemble(FORGOTTEN, {}), has_begun=True).notes
    (warning,) = (note for note in notes if note.startswith("warning: "))
    assert warning == (
        "warning: evaluation set 'heldout' would never be evaluated, because eval_interval is not given; a new run"
        " would be refused"
    )


def test_null_asks_for_no_evaluation_and_the_run_says_so() -> None:
    sentence = "evaluation set 'heldout' will not be evaluated: eval_interval is null"
    assert sentence in prepare(assemble(FORGOTTEN, {"eval_interval": None})).notes
    on_the_command_line = {"eval_interval": "null", "eval": json.dumps([HELDOUT]), "model.device": "cpu"}
    assert sentence in prepare(load("quickstart", on_the_command_line)).notes


def test_the_config_of_an_old_run_names_null_so_it_is_no_reason_to_refuse() -> None:
    stored = json.loads(assemble(FORGOTTEN, {}).model_dump_json())
    assert prepare(Settings.model_validate(stored))


def test_a_set_that_is_not_evaluated_is_not_held_to_the_models_positions() -> None:
    long = assemble(FORGOTTEN | {"rollout": {"max_response_length": 512}}, {"eval_interval": None})
    assert [each.source for each in prepare(long).lengths] == ["train"]
