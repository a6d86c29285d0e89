"""A run on two sources in other systems' formats, with rewards in their signatures and settings in their words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from end_to_end import launch

pytestmark = pytest.mark.slow
REWARDS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(data_source == "chains" and solution_str.strip().endswith(ground_truth))

def shortness(prompts, completions, completion_ids, **columns):
    assert columns["level"] == [1]
    return [1 / len(ids) for ids in completion_ids]
"""


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def two_sources(folder: Path) -> dict[str, object]:
    (folder / "rewards.py").write_text(REWARDS)
    verl = [
        {"data_source": "chains", "prompt": f"{n}+1=", "reward_model": {"ground_truth": str(n + 1)}} for n in range(9)
    ]
    nemo = [{"input": f"{n}+2=", "output": str(n + 2), "level": 1} for n in range(3)]
    sources = [
        {"name": "sums", "path": write(folder / "a.jsonl", verl), "weight": 3, "reward": "compute_score"},
        {"name": "short", "path": write(folder / "b.jsonl", nemo), "weight": 1, "reward": "shortness"},
    ]
    functions = [f"{folder / 'rewards.py'}:{name}" for name in ("compute_score", "shortness")]
    return {"data__sources": json.dumps(sources), "reward__functions": json.dumps(functions)}


def test_sources_rewards_and_settings_of_other_systems_run_and_resume(tmp_path: Path) -> None:
    given = two_sources(tmp_path) | {"schedule__max_steps": 2, "eval": "[]", "eval_interval": "null", "beta": 0.01}
    given["rollout__deterministic"] = True
    result = launch.train(tmp_path / "whole", **given)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "hint: beta is algorithm.kl_loss_coef here" in result.stderr
    assert "sums: prompt from 'prompt', answer from 'reward_model.ground_truth' (verl format)" in result.stdout
    assert "short: prompt from 'input', answer from 'output'" in result.stdout
    rows = launch.untimed_metrics(tmp_path / "whole")
    assert all({"reward/source/sums/mean", "reward/source/short/mean"} <= set(row) for row in rows)

    process = launch.start(tmp_path / "killed", **given)
    assert launch.kill_when(process, lambda: launch.num_entries(tmp_path / "killed") >= 25)
    assert launch.train(tmp_path / "killed", **given).returncode == 0
    assert launch.untimed_metrics(tmp_path / "killed") == rows


def test_a_setting_given_under_two_names_is_refused(tmp_path: Path) -> None:
    result = launch.train(tmp_path / "run", **{"num-rollout": 2})
    assert result.returncode == 2
    assert "schedule.max_steps and num_rollout both set schedule.max_steps; give it once" in result.stderr
    assert not (tmp_path / "run").exists()
