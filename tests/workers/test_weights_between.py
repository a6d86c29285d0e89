"""Two training ranks (FSDP2) and two engines of two ranks: each receiver fetches its slices, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weights.writer_process import with_tests_on_path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "weights_between.py"
VERSIONS = 2


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("between") / "found.json"
    small = ["--hidden", "128", "--layers", "2", "--versions", str(VERSIONS), "--runs"]
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", str(out), *small],
        capture_output=True,
        text=True,
        env=with_tests_on_path() | {"OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(out.read_text())["slices"]
    return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("channel", ["shared-memory", "collective"])
def test_bytes_that_a_receiver_fetches_are_those_of_its_slices(channel: str, measured: dict[str, Any]) -> None:
    found = measured[channel]
    receivers = found["receivers"]
    assert set(receivers) == {f"engine-{engine}-rank-{rank}" for engine in (0, 1) for rank in (0, 1)}
    for name, receiver in receivers.items():
        assert receiver["versions"] == list(range(VERSIONS)), name
        assert receiver["is_right"], f"{name} got wrong weights"
        assert receiver["fetched_bytes"] == [receiver["slices_bytes"]] * VERSIONS, name
        assert receiver["slices_bytes"] < 0.6 * found["model_bytes"], "it fetched more than its half and what all hold"
        senders = ["parameter server"] if channel == "shared-memory" else ["training rank 0", "training rank 1"]
        assert sorted(receiver["by_sender"]) == senders
        assert sum(receiver["by_sender"].values()) == receiver["slices_bytes"]
