"""Real runs whose rollout and training share a GPU with MPS, also when their workers are killed at work.

Skipped where MPS is not installed or does not work. `-s` prints what each run said.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from end_to_end import launch
from end_to_end.test_lost_instances import entries_of, worker
from end_to_end.test_lost_trainer import step_in_progress
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.observe.prompts.conservation import conservation
from tailrace.runtime.gpus.mps import CONTROL
from tailrace.runtime.gpus.mps_daemon import PIPES, MpsDaemon, MpsFailed, ask

MPS = "share the GPU with MPS"
GIVEN: dict[str, Any] = {
    "schedule__mps": "auto",
    "model__device": "cuda",
    "schedule__preset": "staleflow",
    "schedule__max_steps": 40,
    "schedule__rollout_batch_size": 16,
    "rollout__n_samples_per_prompt": 8,
    "rollout__max_running": 64,
    "rollout__max_response_length": 256,
    "eval": "[]",
    "eval_interval": "null",
    "save_interval": 4,
    "limits__start_s": 120,
    "limits__progress_s": 60,
    "limits__train_s": 60,
    "limits__weights_s": 60,
}
"""Rollout and training overlap. The limits are short, so that a worker that hangs is found in this test."""


@pytest.fixture(scope="module", autouse=True)
def works() -> None:
    control = shutil.which(CONTROL)
    if control is None:
        pytest.skip(f"{CONTROL} is not on PATH")
    try:
        MpsDaemon.start(control, device=0).stop()
    except MpsFailed as error:
        pytest.skip(f"MPS does not work here: {error}")


class Run:
    """A run in progress."""

    def __init__(self, process: subprocess.Popen[str], output: Path, said: Path) -> None:
        self.process, self.output, self._said = process, output, said

    @property
    def said(self) -> str:
        return self._said.read_text()

    def entries(self) -> list[Entry]:
        return entries_of(self.output)

    def wait_until(self, has_come: Callable[[list[Entry]], bool]) -> None:
        launch.wait_until(self.process, lambda: has_come(self.entries()))  # type: ignore[arg-type]

    def worker(self, name: str) -> psutil.Process:
        return worker(self.process, name)

    def pipes(self) -> Path:
        """The folder of the daemon that the trainer uses."""
        self.wait_until(lambda entries: num(entries, ev.StepTrained) >= 1)
        return Path(self.worker("training").environ()[PIPES])


@contextmanager
def started(folder: Path, **changes: Any) -> Iterator[Run]:
    output, said = folder / "run", folder / "said"
    with said.open("w") as file:
        process = subprocess.Popen(
            launch.command(output, **GIVEN | changes), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    run = Run(process, output, said)  # type: ignore[arg-type]
    try:
        yield run
    finally:
        process.kill()
        process.wait()
        print(run.said)


def num(entries: list[Entry], kind: type) -> int:
    return sum(isinstance(entry.event, kind) for entry in entries)


def version(entries: list[Entry]) -> int:
    return max((entry.event.version for entry in entries if isinstance(entry.event, ev.StepTrained)), default=0)


def is_generating(entries: list[Entry]) -> bool:
    last = next((entry.event for entry in reversed(entries) if isinstance(entry.event, ev.RolloutReported)), None)
    return last is not None and bool(last.progressed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_workers_are_clients_of_the_runs_own_daemon_which_ends_with_the_run(tmp_path: Path, dtype: str) -> None:
    control = shutil.which(CONTROL)
    assert control is not None
    with started(tmp_path, model__dtype=dtype) as run:
        pipes = run.pipes()
        assert (ask(control, "get_server_list", str(pipes)) or "").split(), "no client came"
        priorities = [run.worker(name).environ()["CUDA_MPS_CLIENT_PRIORITY"] for name in ("rollout-0", "training")]
        assert priorities == ["0", "1"]
        assert run.process.wait(timeout=200) == 0, run.said
        assert MPS in run.said
        assert not pipes.exists()
    assert not left_behind(pipes)


def left_behind(pipes: Path) -> list[psutil.Process]:
    """Processes of this daemon, or of its clients, that do not end within a minute."""
    found = [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get(PIPES) == str(pipes)]
    return list(psutil.wait_procs(found, timeout=60)[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_goes_on_when_rollout_and_then_training_is_killed_at_work(tmp_path: Path, dtype: str) -> None:
    with started(tmp_path, model__dtype=dtype, schedule__max_steps=120) as run:
        run.wait_until(lambda entries: version(entries) >= 2 and is_generating(entries))
        reached = version(run.entries())
        run.worker("rollout-0").kill()
        run.wait_until(lambda entries: num(entries, ev.InstanceLost) >= 1)
        run.wait_until(lambda entries: version(entries) >= reached + 4)

        run.wait_until(lambda entries: step_in_progress(entries) >= 0)
        reached, num_lost = version(run.entries()), num(run.entries(), ev.TrainerLost)
        run.worker("training").kill()
        run.wait_until(lambda entries: num(entries, ev.TrainerLost) > num_lost)
        run.wait_until(lambda entries: version(entries) >= reached + 2)

        assert run.process.wait(timeout=250) == 0, run.said
        assert MPS in run.said
        found = conservation(run.entries())
        assert found["adds_up"]
        assert not found["trained_twice"]
        losses = {kind.__name__: num(run.entries(), kind) for kind in (ev.InstanceLost, ev.TrainerLost)}
        print(f"{losses}; the server failed {run.said.count('the MPS server has failed')} times")


JUDGE: dict[str, Any] = {
    "reward__functions": '["exact_match", {"function": "judge", "weight": 0.5}]',
    "reward__judge__model": "tiny-arith",
    "reward__judge__prompt": '"{prompt}{response}+0="',
    "reward__judge__chat": False,
    "reward__judge__answers": '{"1": 1.0, "2": 0.0}',
}


def num_judged(entries: list[Entry]) -> int:
    """Reports of scores by the judge."""
    return sum(isinstance(e.event, ev.ResponsesScored) and e.event.part is Part.JUDGE for e in entries)


def test_a_run_goes_on_when_its_judge_is_killed_at_work_and_when_rollout_takes_the_judge_along(tmp_path: Path) -> None:
    with started(tmp_path, **JUDGE, schedule__max_steps=120) as run:
        for name in ("judge-0", "rollout-0"):
            reached, judged = version(run.entries()), num_judged(run.entries())
            run.wait_until(lambda entries, judged=judged: num_judged(entries) > judged and is_generating(entries))
            run.worker(name).kill()
            run.wait_until(lambda entries, reached=reached: version(entries) >= reached + 4)
        assert run.process.wait(timeout=250) == 0, run.said
        assert MPS in run.said
        assert "judge-0 is lost: " in run.said
        assert conservation(run.entries())["adds_up"]
        scored = [e.event for e in run.entries() if isinstance(e.event, ev.ResponsesScored)]
        outcomes = {each.outcome for event in scored if event.part is Part.JUDGE for each in event.scores}
        assert outcomes <= {Outcome.OK, Outcome.ABORTED}
        print(f"the server failed {run.said.count('the MPS server has failed')} times")


def test_an_interrupted_run_ends_its_daemon(tmp_path: Path) -> None:
    with started(tmp_path, schedule__max_steps=5000) as run:
        pipes = run.pipes()
        assert pipes.exists()
        os.kill(run.process.pid, signal.SIGINT)
        assert run.process.wait(timeout=100) == 1, run.said
        assert "it was asked to stop" in run.said
        assert not pipes.exists()


def test_a_killed_controller_leaves_no_daemon(tmp_path: Path) -> None:
    with started(tmp_path, schedule__max_steps=5000) as run:
        pipes = run.pipes()
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        assert not left_behind(pipes)
        assert not pipes.parent.exists()
