"""Rewards that hang, exit, hoard memory, return NaN or raise: the run goes on within its limits and reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end import launch

pytestmark = pytest.mark.slow
FUNCTION = f"[{Path(__file__).with_name('bad_rewards.py')}:score]"


@pytest.mark.long
@pytest.mark.parametrize(("on_failure", "num_groups"), [("zero", 16), ("drop", 12)])
def test_the_run_goes_on_and_counts_every_kind_of_failure(tmp_path: Path, on_failure: str, num_groups: int) -> None:
    # Five of sixteen prompts have a bad reward: one step of twelve other groups has met them all.
    rows = [{"prompt": f"{n}+{n // 5}=", "answer": str(n if n < 5 else 10 * n + 5)} for n in range(16)]
    result = launch.train(
        tmp_path / "run",
        data__train=launch.write_rows(tmp_path / "rows.jsonl", rows),
        reward__functions=FUNCTION,
        reward__timeout_s=0.3,
        reward__memory_mb=512,
        reward__workers=2,
        reward__on_failure=on_failure,
        schedule__rollout_batch_size=num_groups,
        rollout__n_samples_per_prompt=2,
        rollout__max_response_length=16,
        schedule__max_steps=1,
        eval="[]",
        eval_interval="null",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (row,) = launch.untimed_metrics(tmp_path / "run")
    counts = {kind: row[f"reward/num_{kind}"] for kind in ("timeout", "crash", "error", "invalid")}
    assert min(counts.values()) > 0, counts
    assert "rewards failed: " in result.stdout
    assert "KeyError: 'no such thing'" in result.stdout, "the reason of a failure is not shown"
    assert row["groups/num"] == num_groups, "a dropped group was not replaced"
    assert row["groups/num_samples"] == 2 * num_groups


def test_a_run_whose_rewards_all_fail_ends_with_a_sentence_instead_of_looping(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def score(response):\n    raise RuntimeError('the judge is down')\n")
    result = launch.train(
        tmp_path / "run",
        reward__functions=f"[{tmp_path}/broken.py:score]",
        reward__on_failure="drop",
        rollout__max_response_length=8,
        eval="[]",
        eval_interval="null",
    )
    assert result.returncode == 1
    assert "groups in a row lost every response to a failing reward" in result.stdout
    assert "the judge is down" in result.stdout


def test_a_reward_that_cannot_be_loaded_is_refused_before_any_work(tmp_path: Path) -> None:
    result = launch.train(tmp_path / "run", reward__functions="[nowhere.py:score]")
    assert result.returncode == 2
    assert "nowhere.py" in result.stderr
    assert not (tmp_path / "run" / "journal.jsonl").exists() or not (tmp_path / "run" / "journal.jsonl").read_bytes()
