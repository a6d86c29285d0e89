"""Whole runs of `tailrace train`, in deterministic mode: repeated, killed, resumed, replayed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from end_to_end import launch
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import InstanceLost, RunResumed
from tailrace.core.journal import replay_all
from tailrace.observe.journal_file import read
from tailrace.policies.routing.least_loaded import LeastLoaded

pytestmark = pytest.mark.slow
DETERMINISTIC = {"rollout__deterministic": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    output = tmp_path_factory.mktemp("whole") / "run"
    result = launch.train(output, **DETERMINISTIC)
    assert result.returncode == 0, result.stdout + result.stderr
    return output


def test_the_checkpoint_loads_with_transformers(whole: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = whole / "checkpoints" / "latest"
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    tokens = AutoTokenizer.from_pretrained(checkpoint)("1+2=", return_tensors="pt")
    assert model.generate(**tokens, max_new_tokens=3).shape[1] > tokens["input_ids"].shape[1]


def test_two_runs_with_the_same_seed_give_the_same_metrics_and_weights(whole: Path, tmp_path: Path) -> None:
    assert launch.train(tmp_path / "run", **DETERMINISTIC).returncode == 0
    assert launch.untimed_metrics(tmp_path / "run") == launch.untimed_metrics(whole)
    assert launch.final_weights(tmp_path / "run") == launch.final_weights(whole)


def test_a_journal_replays_to_identical_commands(whole: Path) -> None:
    entries = [entry for _, entry in read(whole / "journal.jsonl")]
    assert replay_all(entries, lambda schedule: Coordinator(schedule, routing=LeastLoaded())) == len(entries)


def test_a_run_killed_at_random_moments_ends_like_one_that_was_not(whole: Path, tmp_path: Path) -> None:
    output, rng = tmp_path / "run", random.Random(0)
    total = (whole / "journal.jsonl").read_bytes().count(b"\n")
    for moment in sorted(rng.sample(range(2, total), 2)):
        process = launch.start(output, **DETERMINISTIC)
        launch.kill_when(process, lambda: launch.num_entries(output) >= moment)  # noqa: B023  used at once
        process.wait()
    result = launch.train(output, **DETERMINISTIC)
    assert result.returncode == 0, result.stdout + result.stderr
    assert launch.final_weights(output) == launch.final_weights(whole)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole)
    entries = [entry for _, entry in read(output / "journal.jsonl")]
    assert any(isinstance(entry.event, RunResumed) for entry in entries)
    assert replay_all(entries, lambda schedule: Coordinator(schedule, routing=LeastLoaded())) == len(entries)


def test_a_run_killed_around_its_last_checkpoint_still_writes_it(whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    for name in ("step_4.partial", "step_4"):
        process = launch.start(output, **DETERMINISTIC)
        assert launch.kill_when(process, lambda: (output / "checkpoints" / name).exists())  # noqa: B023  used at once
    result = launch.train(output, **DETERMINISTIC)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (output / "checkpoints" / "latest").resolve().name == "step_4"
    assert launch.final_weights(output) == launch.final_weights(whole)
    assert launch.untimed_metrics(output) == launch.untimed_metrics(whole)
    assert "done: 4 steps are done; reward" in result.stdout


def test_no_worker_outlives_a_killed_controller(tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **DETERMINISTIC)
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(process.pid).children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert children
    assert alive == []


def test_a_killed_rollout_instance_is_replaced_and_changes_nothing(whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **DETERMINISTIC)
    victim = find_worker(process.pid, "tailrace.workers.rollout", output)
    victim.kill()
    assert process.wait(timeout=200) == 0
    lost = [entry.event for _, entry in read(output / "journal.jsonl") if isinstance(entry.event, InstanceLost)]
    assert len(lost) == 1
    assert "SIGKILL" in lost[0].reason
    assert launch.final_weights(output) == launch.final_weights(whole)


def find_worker(controller: int, module: str, output: Path) -> psutil.Process:
    """The worker of this module, once the run has generated something."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        journal = output / "journal.jsonl"
        if journal.exists() and b"RolloutReported" in journal.read_bytes():
            for child in psutil.Process(controller).children(recursive=True):
                if module in child.cmdline():
                    return child
        time.sleep(0.02)
    raise AssertionError(f"no {module} under {controller}")


def test_a_finished_run_shows_its_result_and_other_settings_are_refused(whole: Path) -> None:
    again = launch.train(whole, **DETERMINISTIC)
    assert again.returncode == 0
    assert "this run is finished: 4 steps are done" in again.stdout
    other = launch.train(whole, **DETERMINISTIC, seed=7)
    assert other.returncode == 2
    assert "holds a run with other settings (seed)" in other.stderr


def test_a_stopped_run_ends_in_good_order(tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, schedule__max_steps=30)
    find_worker(process.pid, "tailrace.workers.rollout", output)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 1
    *_, (_, last) = read(output / "journal.jsonl")
    assert last.event.reason == "it was asked to stop"
