"""A Ray actor does what every worker must do. Ray is real: it runs on this machine while the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")
pytest.register_assert_rewrite("contract.worker_suite")

from contract.worker_suite import *  # noqa: E402, F403
from tailrace.runtime.launchers.worker import Launcher  # noqa: E402
from tailrace.runtime.ray.launcher import RayLauncher  # noqa: E402
from tailrace.runtime.ray.resources import PlacementGroups  # noqa: E402

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def launch(ray_on_this_machine: None, tmp_path: Path) -> Launcher:
    return RayLauncher(tmp_path, PlacementGroups({}))
