"""Rewards that hang, exit, hoard memory, return NaN or raise: the run goes on within its limits and reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end import launch

pytestmark = pytest.mark.slow
FUNCTION = f"[{Path(__file__).with_name('bad_rewards.py')}:score]"


@pytest.mark.parametrize("on_failure", ["zero", "drop"])
def test_the_run_goes_on_and_counts_every_kind_of_failure(tmp_path: Path, on_failure: str) -> None:
    result = launch.train(
        tmp_path / "run",
        reward__functions=FUNCTION,
        reward__timeout_s=0.3,
        reward__memory_mb=512,
        reward__workers=2,
        reward__on_failure=on_failure,
        schedule__rollout_batch_size=8,
        rollout__n_samples_per_prompt=2,
        schedule__max_steps=3,
        eval_interval="null",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [row for row in launch.untimed_metrics(tmp_path / "run") if "reward/mean" in row]
    counts = {kind: sum(row[f"reward/num_{kind}"] for row in rows) for kind in ("timeout", "crash", "error", "invalid")}
    assert min(counts.values()) > 0, counts
    assert "rewards failed: " in result.stdout
    assert "KeyError: 'no such thing'" in result.stdout, "the reason of a failure is not shown"
    num_trained = sum(row["groups/num_samples"] for row in rows)
    assert all(row["groups/num"] == 8 for row in rows), "a dropped group was not replaced"
    if on_failure == "zero":
        assert num_trained == 3 * 8 * 2


def test_a_run_whose_rewards_all_fail_ends_with_a_sentence_instead_of_looping(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def score(response):\n    raise RuntimeError('the judge is down')\n")
    result = launch.train(
        tmp_path / "run", reward__functions=f"[{tmp_path}/broken.py:score]", reward__on_failure="drop"
    )
    assert result.returncode == 1
    assert "groups in a row lost every response to a failing reward" in result.stdout
    assert "the judge is down" in result.stdout


def test_a_reward_that_cannot_be_loaded_is_refused_before_any_work(tmp_path: Path) -> None:
    result = launch.train(tmp_path / "run", reward__functions="[nowhere.py:score]")
    assert result.returncode == 2
    assert "nowhere.py" in result.stderr
    assert not (tmp_path / "run" / "journal.jsonl").exists() or not (tmp_path / "run" / "journal.jsonl").read_bytes()
