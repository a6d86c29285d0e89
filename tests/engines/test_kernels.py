"""The Triton kernels in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

import engines.interpreted  # noqa: F401

pytest.register_assert_rewrite("engines.kernel_suite")

from engines.kernel_suite import *  # noqa: E402, F403


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture(params=[torch.float32, torch.float16], ids=["fp32", "fp16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """The interpreter does not multiply bfloat16; `tests/gpu` does."""
    found: torch.dtype = request.param
    return found
