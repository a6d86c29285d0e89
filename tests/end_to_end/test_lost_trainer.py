"""The training process is killed under a run for real: the run goes on to the same weights, or says why it cannot."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from end_to_end import launch
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.journal.journal_file import read
from tailrace.observe.prompts.conservation import conservation

pytestmark = [pytest.mark.slow, pytest.mark.long]
GIVEN: dict[str, Any] = {
    "rollout__deterministic": True,
    "eval": "[]",
    "eval_interval": "null",
    "schedule__max_steps": 8,
    "save_interval": 2,
}
"""A checkpoint after every second step."""


def entries_of(output: Path) -> list[Entry]:
    journal = output / "journal.jsonl"
    return [entry for _, entry in read(journal)] if journal.exists() else []


def trainers(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    return [
        child for child in launch.children(process) if "tailrace.workers.training_worker:serve" in launch.words(child)
    ]


def step_in_progress(entries: list[Entry]) -> int:
    """The version that is being trained; -1: none."""
    version = -1
    for entry in entries:
        if isinstance(entry.event, ev.StepTrained | ev.TrainerLost):
            version = -1
        for command in entry.commands:
            version = command.version if isinstance(command, do.Accumulate) else version
    return version


def kill_in_step(process: subprocess.Popen[Any], output: Path, version: int) -> None:
    """Kill the trainer in the middle of the step from this version, or of a later one if that is over too soon."""
    launch.wait_until(process, lambda: len(trainers(process)) == 1)
    [trainer] = trainers(process)
    while True:
        launch.wait_until(process, lambda: step_in_progress(entries_of(output)) >= version)
        trainer.suspend()
        time.sleep(0.1)  # what it had said arrives
        if step_in_progress(entries_of(output)) >= version:
            break
        trainer.resume()
    num_lost = _num_lost(entries_of(output))
    trainer.kill()
    launch.wait_until(process, lambda: _num_lost(entries_of(output)) > num_lost)


def _reached(entries: list[Entry], version: int) -> bool:
    return any(isinstance(entry.event, ev.StepTrained) and entry.event.version >= version for entry in entries)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train_well(tmp_path_factory.mktemp("undisturbed") / "run", **GIVEN).output


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run; its trainer is killed in the middle of an early step and of a later one."""
    output = tmp_path_factory.mktemp("disturbed") / "run"
    process = launch.start(output, **GIVEN)
    try:
        for version in (0, 3):
            kill_in_step(process, output, version)
        assert process.wait(timeout=200) == 0
    finally:
        process.kill()
        process.wait()
    return output


def _num_lost(entries: list[Entry]) -> int:
    return sum(isinstance(entry.event, ev.TrainerLost) for entry in entries)


def test_a_trainer_killed_in_the_middle_of_a_step_changes_no_weight(undisturbed: Path, disturbed: Path) -> None:
    assert launch.final_weights(disturbed) == launch.final_weights(undisturbed)
    assert launch.final_weights(disturbed, "trainer_state.safetensors") == launch.final_weights(
        undisturbed, "trainer_state.safetensors"
    )
    assert launch.untimed_metrics(disturbed) == launch.untimed_metrics(undisturbed)


def test_a_killed_trainer_takes_only_the_steps_after_the_checkpoint_again(disturbed: Path) -> None:
    entries = entries_of(disturbed)
    lost = [i for i, entry in enumerate(entries) if isinstance(entry.event, ev.TrainerLost)]
    assert len(lost) == 2
    assert all("SIGKILL" in entries[i].event.reason for i in lost)  # type: ignore[attr-defined]
    reached = [entry.event.version for entry in entries[lost[1] :] if isinstance(entry.event, ev.TrainerReached)]
    before = entries[: lost[1]]
    saved = max(entry.event.version for entry in before if isinstance(entry.event, ev.CheckpointSaved))
    trained = max(entry.event.version for entry in before if isinstance(entry.event, ev.StepTrained))
    assert saved >= 2
    assert reached == list(range(saved, trained + 1))


def test_every_prompt_of_a_run_that_lost_its_trainer_is_accounted_for(disturbed: Path) -> None:
    found = conservation(entries_of(disturbed))
    assert found["adds_up"]
    assert not found["trained_twice"]


def test_a_run_whose_trainer_dies_whenever_it_starts_ends_with_a_sentence(tmp_path: Path) -> None:
    output = tmp_path / "run"
    arguments = launch.command(output, **GIVEN | {"limits__max_restarts": 1, "schedule__max_steps": 500})
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        launch.wait_until(process, lambda: _reached(entries_of(output), 1))
        deadline = time.monotonic() + 100
        while process.poll() is None:
            assert time.monotonic() < deadline
            kill_trainers(process)
            time.sleep(0.005)
    finally:
        process.kill()
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert (
        "the run ended early: the trainer was lost 2 times within one step; the last time: worker 'training'" in printed
    )
    assert "killed by SIGKILL" in printed
    assert "Traceback" not in printed


def kill_trainers(process: subprocess.Popen[Any]) -> None:
    try:
        for trainer in trainers(process):
            trainer.kill()
    except psutil.NoSuchProcess:
        pass  # it ended by itself a moment ago
