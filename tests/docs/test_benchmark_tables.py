"""The tables of benchmarks/README.md are those of the results that are kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_table_of_the_page_is_made_from_the_results() -> None:
    checked = subprocess.run([sys.executable, str(BENCHMARKS / "tables.py"), "--check"], check=False)
    assert checked.returncode == 0, "make them again: python benchmarks/tables.py --write"


def test_every_result_file_that_the_page_names_exists_or_is_made_by_a_simulation() -> None:
    page = (BENCHMARKS / "README.md").read_text()
    named = set(re.findall(r"`(\w+\.json)`", page))
    made = {"simulated_staleflow.json", "simulated_staleflow_grid.json", "simulated_staleflow_full_size.json"}
    assert {name for name in named if not (BENCHMARKS / "results" / name).exists()} <= made


@pytest.mark.slow
@pytest.mark.long
def test_the_figures_of_our_own_runs_follow_from_the_kept_journals(tmp_path: Path) -> None:
    file = tmp_path / "own_runs.json"
    command = [sys.executable, str(BENCHMARKS / "own_runs.py"), "--json", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    assert found == json.loads((BENCHMARKS / "results" / "own_runs.json").read_text()), "make bench-own-runs"
    assert len({run["recipe"] for run in found["alone"]}) > 1
    assert all(0.9 < run["simulated_over_wall"] < 1.1 for run in found["alone"])
    assert all(0.0 < pair["saving"] < 0.25 for pair in found["shared"]), "half of the training devices, less a slowdown"
