"""A whole run on one CUDA device, in both precisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from end_to_end import launch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_on_cuda_ends_and_its_log_probs_agree(tmp_path: Path, dtype: str) -> None:
    result = launch.train(
        tmp_path / "run",
        model__dtype=dtype,
        model__device="cuda",
        trainer__gradient_checkpointing=dtype == "bfloat16",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [row for row in launch.untimed_metrics(tmp_path / "run") if "reward/mean" in row]
    assert len(rows) == 4
    assert max(row["mismatch/logprob_abs_diff"] for row in rows) < (1e-3 if dtype == "float32" else 5e-2)
