"""A wheel built from the tree trains outside the checkout, tiny model included, to the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from end_to_end import launch
from end_to_end.launch import Run

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROOT = Path(__file__).parents[2]


def test_a_wheel_trains_outside_the_checkout_and_the_same_seed_gives_the_same_run(whole: Run, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("tailrace-*.whl")
    assert wheel.stat().st_size < 8_000_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    command = launch.command(tmp_path / "run", **whole.given)
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr
    assert launch.untimed_metrics(tmp_path / "run") == launch.untimed_metrics(whole.output)
    assert launch.final_weights(tmp_path / "run") == launch.final_weights(whole.output)
    where = [sys.executable, "-c", "import tailrace; print(tailrace.__file__)"]
    found = subprocess.run(where, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path / "site") in found.stdout, "the test ran the checkout instead of the wheel"
