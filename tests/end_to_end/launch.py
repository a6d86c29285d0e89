"""Start real runs of the command line, and kill them for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tailrace.observe.metrics.rows import TIMED_GROUPS

SMALL: dict[str, Any] = {
    "schedule.rollout_batch_size": 4,
    "schedule.max_steps": 4,
    "rollout.n_samples_per_prompt": 4,
    "rollout.max_response_length": 64,
    "rollout.max_running": 16,
    "rollout.threads": 1,
    "rollout.progress_interval_s": 0.05,
    "trainer.threads": 1,
    "report": False,
    "eval_interval": 2,
    "save_interval": 3,
    "eval": '[{"name": "heldout", "path": "builtin:arith-heldout", "max_prompts": 8, "reward": "exact_match"}]',
}
"""A few seconds of work: 4 steps of 4 x 4 responses, two evaluations, a checkpoint that does not cover all steps."""

REWARDS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(data_source == "chains" and solution_str.strip().endswith(ground_truth))

def shortness(prompts, completions, completion_ids, **columns):
    assert columns["level"] == [1]
    return [1 / len(ids) for ids in completion_ids]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that ended well."""

    output: Path
    given: dict[str, Any]
    """The settings it was started with."""
    said: str
    warned: str


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def other_systems_words(folder: Path) -> dict[str, Any]:
    """Two sources in other systems' formats, their rewards in two signatures, and TRL's name of the KL weight."""
    (folder / "rewards.py").write_text(REWARDS)
    verl = [
        {"data_source": "chains", "prompt": f"{n}+1=", "reward_model": {"ground_truth": str(n + 1)}} for n in range(9)
    ]
    nemo = [{"input": f"{n}+2=", "output": str(n + 2), "level": 1} for n in range(3)]
    sources = [
        {"name": "sums", "path": write_rows(folder / "a.jsonl", verl), "weight": 3, "reward": "compute_score"},
        {"name": "short", "path": write_rows(folder / "b.jsonl", nemo), "weight": 1, "reward": "shortness"},
    ]
    functions = [f"{folder / 'rewards.py'}:{name}" for name in ("compute_score", "shortness")]
    return {"data__sources": json.dumps(sources), "reward__functions": json.dumps(functions), "beta": 0.01}


def command(output: Path, **overrides: Any) -> list[str]:
    settings = SMALL | {name.replace("__", "."): value for name, value in overrides.items()}
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "tailrace", "train", "quickstart", "--output_dir", str(output), *flags]


def train(output: Path, **overrides: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(output, **overrides), capture_output=True, text=True, timeout=240)


def train_well(output: Path, **overrides: Any) -> Run:
    result = train(output, **overrides)
    assert result.returncode == 0, result.stdout + result.stderr
    return Run(output=output, given=overrides, said=result.stdout, warned=result.stderr)


def start(output: Path, **overrides: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(output, **overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def wait_until(process: subprocess.Popen[bytes], has_come: Callable[[], bool]) -> None:
    """Until the moment has come in this run, which must not end before."""
    deadline = time.monotonic() + 200
    while not has_come():
        assert process.poll() is None, "the run ended before the moment came"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.002)


def kill_when(process: subprocess.Popen[bytes], has_come: Callable[[], bool]) -> list[psutil.Process]:
    """Kill -9 the controller at this moment; returns its workers that outlive it."""
    wait_until(process, has_come)
    workers = children(process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return psutil.wait_procs(workers, timeout=20)[1]


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def words(child: psutil.Process) -> list[str]:
    """Its command line; empty if it has ended since it was listed."""
    try:
        return child.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def num_entries(output: Path) -> int:
    journal = output / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def untimed_metrics(output: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith(TIMED_GROUPS)} for row in rows]


def final_weights(output: Path, file: str = "model.safetensors") -> bytes:
    return (output / "checkpoints" / "latest" / file).read_bytes()
