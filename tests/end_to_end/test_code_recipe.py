"""The recipe that trains with programs in isolation: ten steps, verdicts in the metrics, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewards.sandbox.players import needs_bubblewrap
from tailrace.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.long, needs_bubblewrap]


def test_the_recipe_trains_with_code_tests(tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert main(["train", "code-cpu", "--output_dir", str(output), "--rollout.threads", "1"]) == 0
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert all(0 < row["reward/mean"] < 1 for row in rows)
    assert all(row["reward/verdict/passed/mean"] == pytest.approx(row["reward/mean"]) for row in rows)
    failures = ("error", "timeout", "crash", "invalid")
    assert not any(row[f"reward/num_{failure}"] for row in rows for failure in failures)
    groups = Path("/sys/fs/cgroup").glob("**/tailrace-sandbox-*")
    assert [path for path in groups if not Path("/proc", path.name.split("-")[2]).exists()] == []
