"""Start real runs of the command line, and kill them for real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.observe.metrics import TIMED_GROUPS

SMALL: dict[str, Any] = {
    "schedule.rollout_batch_size": 4,
    "schedule.max_steps": 4,
    "rollout.n_samples_per_prompt": 4,
    "rollout.max_response_length": 64,
    "rollout.max_running": 16,
    "rollout.threads": 1,
    "rollout.progress_interval_s": 0.05,
    "trainer.threads": 1,
    "eval_interval": 2,
    "save_interval": 3,
    "eval": '[{"name": "heldout", "path": "builtin:arith-heldout", "max_prompts": 8}]',
}
"""A few seconds of work: 4 steps of 4 x 4 responses, two evaluations, a checkpoint that does not cover all steps."""


def command(output: Path, **overrides: Any) -> list[str]:
    settings = SMALL | {name.replace("__", "."): value for name, value in overrides.items()}
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "tailrace", "train", "quickstart", "--output_dir", str(output), *flags]


def train(output: Path, **overrides: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(output, **overrides), capture_output=True, text=True, timeout=240)


def start(output: Path, **overrides: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(output, **overrides), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def kill_when(process: subprocess.Popen[bytes], has_come: Callable[[], bool]) -> bool:
    """Kill -9 the controller at this moment; False if it ended before."""
    deadline = time.monotonic() + 200
    while process.poll() is None and time.monotonic() < deadline:
        if has_come():
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    return False


def num_entries(output: Path) -> int:
    journal = output / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def untimed_metrics(output: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith(TIMED_GROUPS)} for row in rows]


def final_weights(output: Path, file: str = "model.safetensors") -> bytes:
    return (output / "checkpoints" / "latest" / file).read_bytes()
