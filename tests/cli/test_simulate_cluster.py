"""`tailrace simulate` for a scenario with a `[cluster]` section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.cli.main import main

SCENARIOS = Path(__file__).parents[2] / "scenarios"


def test_a_cluster_scenario_is_printed_kept_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, page = tmp_path / "figures.json", tmp_path / "page.html"
    scenario = str(SCENARIOS / "cluster_two_jobs.toml")
    assert main(["simulate", scenario, "--steps", "3", "--json", str(figures), "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "spread" in printed
    assert f"page: {page}" in printed
    assert "Node groups over time" in page.read_text()
    (found,) = json.loads(figures.read_text())
    assert found["policy"] == "spread"
    assert {job["steps"] for job in found["jobs"]} == {3}


@pytest.mark.parametrize(("name", "steps", "unit"), [("own_runs", "5", "s"), ("two_jobs", "3", "min"),
                                                     ("two_jobs", "30", "h")])  # fmt: skip
def test_the_unit_of_the_table_goes_by_the_makespan(
    name: str, steps: str, unit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(SCENARIOS / f"cluster_{name}.toml"), "--steps", steps]) == 0
    heading, first, *_ = capsys.readouterr().out.splitlines()
    assert f"makespan {unit}  " in heading
    assert f"device-{unit}/step" in heading
    assert float(first.split()[1]) >= 2.0


def test_only_a_cluster_scenario_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = str(SCENARIOS / "two_instances.toml")
    assert main(["simulate", scenario, "--html", str(tmp_path / "page.html")]) == 2
    assert "only scenarios with a [cluster] section are drawn" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_run_of_our_own_alone_takes_the_time_of_its_steps(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    assert main(["simulate", str(SCENARIOS / "cluster_own_runs.toml"), "--json", str(figures)]) == 0
    alone, shared = json.loads(figures.read_text())
    traces = SCENARIOS.parent / "benchmarks" / "results" / "traces"
    steps = json.loads((traces / "quickstart_sync.json").read_text())["steps"]
    (sync,) = [job for job in alone["jobs"] if job["model"] == "sync"]
    assert sync["ended"] - sync["started"] == pytest.approx(sum(map(sum, steps)), abs=0.1)
    assert shared["figures"]["makespan_s"] > alone["figures"]["makespan_s"]
    assert shared["figures"]["device_hours_per_step"] < alone["figures"]["device_hours_per_step"]
