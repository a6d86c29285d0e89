"""The fused kernel in Triton's interpreter."""

from __future__ import annotations

import pytest

import engines.interpreted  # noqa: F401

pytest.register_assert_rewrite("trainer.scores_suite")

from trainer.scores_suite import *  # noqa: E402, F403


@pytest.fixture
def device() -> str:
    return "cpu"
