"""A run whose trainer is a group of processes: it trains as one process does, also when a rank is killed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from end_to_end import launch
from end_to_end.test_lost_trainer import GIVEN, entries_of, step_in_progress, trainers
from tailrace.core import events as ev
from tailrace.observe.prompts.conservation import conservation
from tailrace.trainer.checkpoints.export import export, find_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long]
ONE: dict[str, Any] = GIVEN | {"schedule__max_steps": 4}
TWO: dict[str, Any] = ONE | {"trainer__num_ranks": 2}
PARTS: dict[str, Any] = TWO | {"trainer__tensor_parallel_size": 2, "trainer__optimizer_device": "cpu"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train_well(tmp_path_factory.mktemp("two") / "run", **TWO).output


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train_well(tmp_path_factory.mktemp("one") / "run", **ONE).output


def log_of(worker: psutil.Process) -> str:
    """Its name. Numbers of processes do not say which rank was started first: each has a keeper that starts it."""
    return Path(os.readlink(f"/proc/{worker.pid}/fd/1")).stem


def exported(run: Path, folder: Path) -> bytes:
    export(find_checkpoint(run), folder / "exported", base=None)
    return (folder / "exported" / "model.safetensors").read_bytes()


def test_two_ranks_have_the_metrics_of_one_process(undisturbed: Path, alone: Path) -> None:
    assert_same_metrics(undisturbed, alone)


def test_two_ranks_that_divide_every_layer_have_the_metrics_of_one_process(alone: Path, tmp_path: Path) -> None:
    parts = launch.train_well(tmp_path / "run", **PARTS).output
    assert_same_metrics(parts, alone)
    # Weights that were gathered from the parts are those that the trainer scores with.
    rows = [row for row in launch.untimed_metrics(parts) if "mismatch/logprob_abs_diff" in row]
    assert len(rows) == 4
    assert max(row["mismatch/logprob_abs_diff"] for row in rows) < 1e-3


def assert_same_metrics(one: Path, other: Path) -> None:
    rows = zip(launch.untimed_metrics(one), launch.untimed_metrics(other), strict=True)
    first, second = [(mine, theirs) for mine, theirs in rows][:2]
    # Sums of floats in another order. What follows from them drifts apart, since tokens are drawn from them.
    for mine, theirs in (first, second):
        assert mine == pytest.approx(theirs, rel=2e-2, abs=1e-3)
    assert first[0]["reward/mean"] == first[1]["reward/mean"]


COLLECTIVE = {"trainer__weight_channel": "collective"}


def test_weights_that_each_rank_sends_by_itself_are_those_of_the_channel_file(
    undisturbed: Path, tmp_path: Path
) -> None:
    run = launch.train_well(tmp_path / "run", **TWO, **COLLECTIVE).output
    assert launch.untimed_metrics(run) == launch.untimed_metrics(undisturbed)
    assert (
        "weights are sent by each of 2 ranks through torch.distributed" in (run / "logs" / "training.log").read_text()
    )
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    assert exported(run, tmp_path / "mine") == exported(undisturbed, tmp_path / "theirs")


@pytest.mark.parametrize("channel", [{}, COLLECTIVE], ids=["file", "collective"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_in_the_middle_of_a_step_changes_no_weight(
    undisturbed: Path, tmp_path: Path, rank: int, channel: dict[str, str]
) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **TWO, **channel)
    try:
        launch.wait_until(process, lambda: len(trainers(process)) == 2)
        victim = next(child for child in trainers(process) if log_of(child) == ("training", "training-1")[rank])
        while True:
            launch.wait_until(process, lambda: step_in_progress(entries_of(output)) >= 1)
            victim.suspend()
            time.sleep(0.1)  # what it had said arrives
            if step_in_progress(entries_of(output)) >= 1:
                break
            victim.resume()
        victim.kill()
        assert process.wait(timeout=250) == 0
    finally:
        process.kill()
        process.wait()
    [lost] = [entry.event for entry in entries_of(output) if isinstance(entry.event, ev.TrainerLost)]
    assert f"worker 'training{'-1' if rank else ''}' was killed by SIGKILL" in lost.reason
    assert conservation(entries_of(output))["adds_up"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    assert exported(output, tmp_path / "mine") == exported(undisturbed, tmp_path / "theirs")


def test_an_instance_that_is_killed_pulls_from_the_ranks_again_when_it_is_back(tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **TWO, **COLLECTIVE)
    try:
        launch.wait_until(process, lambda: pulls(output) > 0)
        victim = next(child for child in launch.children(process) if is_rollout(child))
        victim.kill()
        assert process.wait(timeout=250) == 0
    finally:
        process.kill()
        process.wait()
    [lost] = [entry for entry in entries_of(output) if isinstance(entry.event, ev.InstanceLost)]
    later = [entry for entry in entries_of(output) if entry.now > lost.now]
    again = [entry.event.instance for entry in later if isinstance(entry.event, ev.WeightsPulled)]
    assert again, "the only instance came back and never pulled"
    assert not any(isinstance(entry.event, ev.TrainerLost) for entry in later), "a receiver's end ended a sender"
    assert conservation(entries_of(output))["adds_up"]


def pulls(output: Path) -> int:
    return sum(isinstance(entry.event, ev.WeightsPulled) for entry in entries_of(output))


def is_rollout(child: psutil.Process) -> bool:
    try:
        return child.cmdline()[-1] == "tailrace.workers.rollout_worker:serve"
    except (psutil.Error, IndexError):
        return False
