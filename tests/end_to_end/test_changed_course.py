"""Runs that are continued with another end, another learning rate, other evaluation sets and edited rewards."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from end_to_end.launch import children, final_weights, start, train, train_well, wait_until, words

pytestmark = pytest.mark.long

EXACT: dict[str, Any] = {
    "rollout.deterministic": True,
    "schedule.rollout_batch_size": 2,
    "rollout.n_samples_per_prompt": 2,
    "rollout.max_response_length": 24,
    "trainer.learning_rate": 1e-3,
    "trainer.warmup_steps": 0,
    "eval_interval": 5,
    "save_interval": 4,
}
HARD = [
    {"name": "heldout", "path": "builtin:arith-heldout", "max_prompts": 8, "reward": "exact_match"},
    {"name": "hard", "path": "builtin:arith-heldout", "max_prompts": 3, "temperature": 0.0},
]


def settings(**more: Any) -> dict[str, Any]:
    return {name.replace(".", "__"): value for name, value in (EXACT | more).items()}


def rates(output: Path) -> list[float]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row["actor/lr"] for row in rows if "actor/lr" in row]


def test_a_finished_run_goes_on_with_another_rate_and_a_new_evaluation_set(tmp_path: Path) -> None:
    train_well(tmp_path, schedule__max_steps=2, trainer__learning_rate=1e-4, trainer__warmup_steps=0)
    more = {
        "trainer__warmup_steps": 0,
        "schedule__max_steps": 4,
        "trainer__learning_rate": 2e-4,
        "eval": json.dumps(HARD),
    }
    went_on = train_well(tmp_path, **more, resume="with-changes")
    assert "evaluation set 'hard' is new" in went_on.said
    assert "schedule.max_steps is 4, before 2" in went_on.said
    assert "learning rate of step 3: 0.0002; with the settings before it would be 0.0001" in went_on.said
    assert "done: 4 steps are done" in went_on.said
    assert rates(tmp_path) == [1e-4, 1e-4, 2e-4, 2e-4]
    [change] = json.loads((tmp_path / "changes.json").read_text())["changes"]
    assert change["from_step"] == 3
    assert [each["setting"] for each in change["changed"]] == [
        "eval:hard",
        "schedule.max_steps",
        "trainer.learning_rate",
    ]
    assert re.search(r"eval at step 4: .*hard/avg@1", went_on.said)
    again = train_well(tmp_path, **more)
    assert "this run is finished: 4 steps are done" in again.said
    too_early = train(tmp_path, **more | {"schedule__max_steps": 3}, resume="with-changes")
    assert too_early.returncode == 2
    assert "has taken 4 steps, so it cannot end after 3; set schedule.max_steps to 4 or more" in too_early.stderr
    renamed = json.dumps([HARD[0], HARD[1] | {"max_prompts": 4}])
    other = train(tmp_path, **more | {"eval": renamed, "schedule__max_steps": 5}, resume="with-changes")
    assert other.returncode == 2
    assert "the prompts of 'hard' changed since the run" in other.stderr
    assert "give the evaluation set with other prompts another name" in other.stderr


def test_an_edited_reward_file_is_refused_unless_that_is_asked_for(tmp_path: Path) -> None:
    rewards, output = tmp_path / "rewards.py", tmp_path / "run"
    rewards.write_text("def score(response):\n    return len(response) / 100\n")
    given = {"reward__functions": json.dumps([f"{rewards}:score"]), "schedule__max_steps": 1}
    train_well(output, **given)
    (output / "result.json").unlink()  # as if it had been killed before its end
    rewards.write_text("def score(response):\n    return -len(response) / 100\n")
    refused = train(output, **given)
    assert refused.returncode == 2
    assert f"the file of reward function '{rewards}:score' changed since the run in" in refused.stderr
    assert "; to continue with the edited file, add --resume with-changes; or choose another" in refused.stderr
    accepted = train_well(output, **given | {"schedule__max_steps": 2}, resume="with-changes")
    assert "done: 2 steps are done" in accepted.said
    changed = json.loads((output / "changes.json").read_text())["changes"][0]["changed"]
    assert {"source": f"file of reward function '{rewards}:score'"} in changed


def test_ten_steps_extended_to_twenty_are_twenty_at_once(tmp_path: Path) -> None:
    whole = train_well(tmp_path / "whole", **settings(**{"schedule.max_steps": 20}))
    train_well(tmp_path / "halves", **settings(**{"schedule.max_steps": 10}))
    halves = train_well(tmp_path / "halves", **settings(**{"schedule.max_steps": 20}), resume="with-changes")
    assert final_weights(halves.output) == final_weights(whole.output)


def test_a_changed_rate_holds_from_the_next_step_whatever_is_killed(tmp_path: Path) -> None:
    """Steps 5 and 6 lie after the checkpoint of step 4. They are repeated with the rate they were first taken with,
    when the run is resumed and again when the trainer is killed in step 8."""
    given = settings(**{"schedule.max_steps": 9, "save_interval": 4})
    for name in ("plain", "killed"):
        output = tmp_path / name
        process = start(output, **given)
        wait_until(process, partial(has_trained, output / "journal.jsonl", 6))
        process.kill()
        process.wait()
    plain = train_well(tmp_path / "plain", **given | {"trainer__learning_rate": 5e-4}, resume="with-changes")
    output = tmp_path / "killed"
    process = start(output, **given | {"trainer__learning_rate": 5e-4}, resume="with-changes")
    wait_until(process, partial(has_trained, output / "journal.jsonl", 7))
    for worker in children(process):
        if "tailrace.workers.training_worker:serve" in words(worker):
            worker.kill()
    assert process.wait() == 0
    assert final_weights(output) == final_weights(plain.output)
    assert rates(output) == rates(plain.output)
    assert rates(output)[:6] == [1e-3] * 6


def has_trained(journal: Path, version: int) -> bool:
    return journal.exists() and f'"StepTrained","version":{version}' in journal.read_text()
