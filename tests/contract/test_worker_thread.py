"""A worker thread does what every worker must do."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("contract.worker_suite")

from contract.thread_worker import ThreadLauncher  # noqa: E402
from contract.worker_suite import *  # noqa: E402, F403
from tailrace.runtime.launchers.worker import Launcher  # noqa: E402


@pytest.fixture
def launch() -> Launcher:
    return ThreadLauncher()
