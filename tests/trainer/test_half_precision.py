"""What bfloat16 costs, in one process and with several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tailrace.data.models import resolve_model
from trainer import half_precision


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*bf16.*:UserWarning", "ignore:.*mkldnn.*:UserWarning")  # of some CPUs
def test_several_ranks_keep_the_residual_stream_in_fp32_as_one_process_does(tmp_path: Path) -> None:
    path = resolve_model("tiny-arith")
    exact, _ = half_precision.logprobs(path, None)
    alone, _ = half_precision.logprobs(path, torch.bfloat16)
    rounded, gradient = half_precision.logprobs(path, torch.bfloat16, is_rounded=True)
    for found, added_up in by_two_ranks(path, tmp_path):
        # Ranks round all weights, which are then those of the rollout; one process only those of matrix products.
        torch.testing.assert_close(found, rounded, rtol=0, atol=1e-5)
        torch.testing.assert_close(added_up, 2 * gradient, rtol=0.02, atol=0.02 * float(gradient.abs().max()))
        assert error(found, exact) < 1.2 * error(alone, exact)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).abs().mean())


def by_two_ranks(path: Path, folder: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    script = str(Path(half_precision.__file__).resolve())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    files = [folder / f"found-{index}" for index in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, script, str(path), str(folder / "store"), str(index), str(file)], env=environment
        )
        for index, file in enumerate(files)
    ]
    assert [process.wait(280) for process in processes] == [0, 0]
    return [torch.load(file) for file in files]
