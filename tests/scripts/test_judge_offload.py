from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "judge_offload.py"


@pytest.mark.slow
@pytest.mark.long
def test_the_benchmark_of_offloaded_layers_runs_on_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--tiny", "--json", str(file)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    passes = found["shapes"]["tiny"]["passes"]
    assert [one["lengths"] for one in passes] == [[16], [48], [96], [16] * 16]
    assert [row["mode"] for row in passes[0]["modes"]] == ["all", "half", "half serial", "none", "none serial"]
    assert found["summary"]["all_bit_equal"]
    assert found["summary"]["all_independent_of_company"]
