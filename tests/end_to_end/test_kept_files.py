"""What a run leaves behind: as many checkpoints as asked for, and metrics under the names it was given."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from end_to_end import launch


@pytest.mark.long
def test_a_run_keeps_the_asked_number_of_checkpoints_and_logs_under_its_names(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    command = launch.command(
        tmp_path / "run",
        schedule__max_steps=3,
        save_interval=1,
        keep_checkpoints=1,
        eval="[]",
        eval_interval="null",
        logger="trackio",
        project_name="river",
        experiment_name="first",
    )
    environment = {**os.environ, "HOME": str(tmp_path), "TRACKIO_DIR": str(tmp_path / "trackio")}
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=240)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["latest", "step_3"]
    with sqlite3.connect(tmp_path / "trackio" / "river.db") as database:
        rows = database.execute("select distinct run_name, step from metrics order by step").fetchall()
    assert rows == [("first", 1), ("first", 2), ("first", 3)]
