"""A worker process does what every worker must do."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite("contract.worker_suite")

from contract.worker_suite import *  # noqa: E402, F403
from tailrace.runtime.launchers.process import ProcessLauncher  # noqa: E402
from tailrace.runtime.launchers.worker import Launcher  # noqa: E402


@pytest.fixture
def launch(tmp_path: Path) -> Launcher:
    return ProcessLauncher(tmp_path)
