"""Workers that are stopped, not dead, are found, killed and started again, and the run ends with the same weights."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from end_to_end import launch, wounds
from end_to_end.test_training_group import exported, log_of
from tailrace.core import events as ev
from tailrace.observe.prompts.conservation import conservation

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]


def test_stopped_and_killed_ranks_instances_and_rewards_change_no_weight(tmp_path: Path) -> None:
    undisturbed, output = launch.train_well(tmp_path / "undisturbed", **wounds.GIVEN).output, tmp_path / "run"
    process = launch.start(output, **wounds.GIVEN)

    def find(name: str) -> psutil.Process:
        kind, _, number = name.partition("-")
        entry = f"tailrace.workers.{kind}_worker:serve"
        found = [child for child in launch.children(process) if entry in launch.words(child)]
        names = (kind, f"{kind}-0") if number in ("", "0") else (name,)
        return next(child for child in found if log_of(child) in names)

    try:
        done = list(wounds.wound(process, output, find))
        assert process.wait(timeout=300) == 0
    finally:
        process.kill()
        process.wait()
    assert len(done) == 4
    assert_wounded_and_well(output, undisturbed, tmp_path)


def assert_wounded_and_well(output: Path, undisturbed: Path, folder: Path) -> None:
    stopped, killed, *_ = wounds.losses(output, ev.TrainerLost)
    assert "s for optimizer step" in stopped.reason
    assert "worker 'training'" in killed.reason
    assert wounds.losses(output, ev.InstanceLost)
    found = conservation(wounds.entries_of(output))
    assert found["adds_up"]
    assert not found["trained_twice"]
    assert launch.untimed_metrics(output) == launch.untimed_metrics(undisturbed)
    weights = []
    for run in (output, undisturbed):
        (folder / f"weights-{run.name}").mkdir()
        weights.append(exported(run, folder / f"weights-{run.name}"))
    assert weights[0] == weights[1]
