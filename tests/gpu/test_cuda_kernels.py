"""The Triton kernels, compiled, on CUDA."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
pytest.register_assert_rewrite("engines.kernel_suite")

from engines.kernel_suite import *  # noqa: E402, F403


@pytest.fixture
def device() -> str:
    return "cuda"


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found
