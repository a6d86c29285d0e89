"""A run that is asked to stop by a signal to all its processes saves first, and repeats nothing when it goes on."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from end_to_end import launch
from end_to_end.wounds import Moment, entries_of, stop_at, trains
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry

pytestmark = [pytest.mark.slow, pytest.mark.long]
GIVEN: dict[str, Any] = {
    "rollout__deterministic": True,
    "eval": "[]",
    "eval_interval": "null",
    "schedule__max_steps": 6,
    "limits__stop_s": 200,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train_well(tmp_path_factory.mktemp("undisturbed") / "run", **GIVEN).output


def saves(entries: list[Entry]) -> bool:
    """Whether a checkpoint is being written."""
    is_saving = False
    for entry in entries:
        if isinstance(entry.event, ev.CheckpointSaved | ev.TrainerLost):
            is_saving = False
        is_saving |= any(isinstance(command, do.SaveCheckpoint) for command in entry.commands)
    return is_saving


@pytest.mark.parametrize(
    ("has_come", "interval"),
    [(trains(after_version=1), 100), (saves, 2)],
    ids=["in the middle of a step", "in the middle of a checkpoint"],
)
def test_a_signal_to_all_processes_costs_no_step(
    undisturbed: Path, tmp_path: Path, has_come: Moment, interval: int
) -> None:
    output, given = tmp_path / "run", GIVEN | {"save_interval": interval}
    command = launch.command(output, **given)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def find(name: str) -> psutil.Process:
        entry = f"tailrace.workers.{name}_worker:serve"
        return next(child for child in launch.children(process) if entry in launch.words(child))

    try:
        launch.wait_until(process, lambda: has_come(entries_of(output)))
        trainer = stop_at(process, output, find, "training", has_come)
        for each in [*launch.children(process), psutil.Process(process.pid)]:
            each.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)  # systemd may send both
        trainer.resume()
        said = process.communicate(timeout=200)[0].decode()
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert said.count("asked to stop: waiting for ") == 1
    assert "; Ctrl-C ends the run at once\n" in said
    assert "the run ended early: it was asked to stop\n" in said
    entries = entries_of(output)
    version = max(entry.event.version for entry in entries if isinstance(entry.event, ev.StepTrained))
    assert (output / "checkpoints" / "latest").resolve().name == f"step_{version}"
    assert not any(isinstance(entry.event, ev.TrainerLost) for entry in entries)
    again = launch.train_well(output, **given)
    assert "repeating" not in again.said
    steps = [e.event.version for e in entries_of(output) if isinstance(e.event, ev.StepTrained)]
    assert steps == [1, 2, 3, 4, 5, 6]
    later = entries_of(output)[len(entries) :]
    assert [e.event.version for e in later if isinstance(e.event, ev.TrainerReached)] == [version]
    assert launch.final_weights(output) == launch.final_weights(undisturbed)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(undisturbed)


REWARD = """
import subprocess

def score(response, answer):
    program = subprocess.run(["sleep", "0.2"])
    return 0.5 + len(response) / 1000 if program.returncode == 0 else 0.0
"""


def hold_a_program(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    """Stop a program that a reward function has started; None if there is none at the moment."""
    for child in launch.children(process):
        with suppress(psutil.NoSuchProcess):
            if launch.words(child)[:1] == ["sleep"]:
                child.suspend()
                return child if child.status() == psutil.STATUS_STOPPED else None
    return None


def trained_scores(output: Path) -> dict[int, tuple[float, ...]]:
    batches = [c for entry in entries_of(output) for c in entry.commands if isinstance(c, do.Accumulate)]
    return {batch.version: batch.scores for batch in batches}


def test_a_signal_to_all_processes_changes_no_score(tmp_path: Path) -> None:
    """It ends the program that a reward function waits for. The function takes that for a failure of the response."""
    (tmp_path / "reward.py").write_text(REWARD)
    given = GIVEN | {
        "reward__functions": f'["{tmp_path / "reward.py"}:score"]',
        "reward__workers": 2,
        "rollout__n_samples_per_prompt": 2,
        "schedule__max_steps": 4,
        "save_interval": 100,
    }
    undisturbed = launch.train_well(tmp_path / "undisturbed", **given).output
    output = tmp_path / "run"
    command = launch.command(output, **given)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    held: list[psutil.Process] = []

    def has_come() -> bool:
        is_trained = any(isinstance(entry.event, ev.StepTrained) for entry in entries_of(output))
        if is_trained and (program := hold_a_program(process)) is not None:
            held.append(program)
        return bool(held)

    try:
        launch.wait_until(process, has_come)
        for each in [*launch.children(process), psutil.Process(process.pid)]:
            with suppress(psutil.NoSuchProcess):  # programs come and go
                each.send_signal(signal.SIGTERM)
        with suppress(psutil.NoSuchProcess):
            held[0].resume()
        said = process.communicate(timeout=200)[0].decode()
    finally:
        process.kill()
        process.wait()
    assert "the run ended early: it was asked to stop\n" in said
    launch.train_well(output, **given)
    assert trained_scores(output) == trained_scores(undisturbed)
    assert launch.final_weights(output) == launch.final_weights(undisturbed)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(undisturbed)
