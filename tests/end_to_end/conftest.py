"""Real runs that several tests look at."""

from __future__ import annotations

import pytest

from end_to_end import launch
from end_to_end.launch import Run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A deterministic run that nobody disturbed: two sources, rewards and a setting in other systems' words."""
    folder = tmp_path_factory.mktemp("whole")
    return launch.train_well(
        folder / "run", **launch.other_systems_words(folder), rollout__deterministic=True, report=True
    )
