"""A run whose trainer is a group of processes: the same training as by one process, also when a rank is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from end_to_end import launch
from end_to_end.test_lost_trainer import GIVEN, entries_of, step_in_progress
from tailrace.core import events as ev
from tailrace.store.tensor_file import read_tensors

pytestmark = [pytest.mark.slow, pytest.mark.long]
TWO: dict[str, Any] = GIVEN | {"trainer__num_ranks": 2, "schedule__max_steps": 6}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train_well(tmp_path_factory.mktemp("two") / "run", **TWO).output
