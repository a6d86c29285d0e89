"""Edges of a replay, with the operations in plain torch on the CPU."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("engines.replay_suite")

from engines.native_engines import make_paged, make_plain, small_model  # noqa: E402, F401
from engines.replay_suite import *  # noqa: E402, F403


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu"
