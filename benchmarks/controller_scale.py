"""What the controller of a large run costs: 64 rollout instances, 128 prompts x 16 responses, no accelerator.

    python benchmarks/controller_scale.py --json FILE [--schedules sync,staleflow] [--steps 4] [--where]

The runtime is the one of every run: a process for each instance, messages, payload store, rewards, journal, metrics and
a trainer (of a very small model). Only the engines are not real: `rollout.engine = "timed"` makes up tokens and sleeps
for as long as a cost model says, in real time. Lengths are forced, lognormal, at most 2,000 tokens: at about 30 ms a
token the longest response takes a minute, and so does a step of `sync`.

Counted are the steps after the first, from the end of one to the end of the next:

* processor seconds of the controller process (all its threads), also as a share of a step of 60 s and of the steps
  that were measured (those of `staleflow` are shorter, since it does not wait for the longest responses);
* the same by kind of thread: event loop, decide (core, journal, metrics), payload, one reader for each worker, ...;
* how late a callback came that was due every 100 ms, and the longest turn of the event loop;
* resident memory of the controller.

Workers, rewards and the trainer need processor time too. On a small machine they compete with the controller, so
lateness includes waiting for a core; `longest_blocked_cpu_ms` does not. Takes about six minutes for each schedule, and
12 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from controller_run import Policy, Sampler, write_model

from tailrace.commands.train import train
from tailrace.config.load import assemble, read_recipe
from tailrace.config.settings import Settings
from tailrace.observe.journal.journal_segments import end_of

NUM_PROMPTS, GROUP_SIZE, MAX_LENGTH = 128, 16, 2000
MEDIAN, SPREAD, NUM_ROWS = 400.0, 0.9, 1024
COSTS = {"k1": 1e-7, "k2": 0.02, "k3": 3e-4, "k4": 0.008, "prefill_s": 2e-5}
"""A step of 32 responses with 400 tokens each takes 29 ms."""
STEP_S, AIM = 60.0, 0.05
BEAT_S = 0.1
"""Much longer than in ``controller_run.py``: 50 beats per second would take 0.4 s of processor time in a step."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The controller at the end of a step."""

    at: float
    cpu_s: float
    cpu_s_by_thread: Counter[str]
    rss_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--schedules", default="sync,staleflow")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--where", action="store_true", help="print where the event loop was blocked")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:  # a process of its own, whose memory is that of one controller
        found = measure(options.folder, options.one, options.instances, options.steps, where=options.where)
        (options.folder / "found.json").write_text(json.dumps(found))
        return
    result = {
        "benchmark": "controller_scale",
        "aim": f"controller CPU below {AIM:.0%} of a step of {STEP_S:.0f} s",
        "num_instances": options.instances,
        "responses_per_step": f"{NUM_PROMPTS} x {GROUP_SIZE}",
        "costs": COSTS,
        "schedules": {name: _in_a_process(name, options) for name in options.schedules.split(",")},
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"tailrace": version("tailrace"), "python": platform.python_version()},
    }
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _in_a_process(schedule: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model")  # here, because a controller does not import what this needs
        _write_lengths(Path(folder) / "lengths.json")
        command = [sys.executable, __file__, "--one", schedule, "--folder", folder, "--steps", str(options.steps)]
        command += ["--instances", str(options.instances), *(["--where"] if options.where else [])]
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text())
        return found


def measure(folder: Path, schedule: str, num_instances: int, num_steps: int, *, where: bool) -> dict[str, Any]:
    settings = _settings(folder, schedule, num_instances, num_steps)
    policy, marks = Policy(BEAT_S), list[Mark]()
    asyncio.set_event_loop_policy(policy)
    sampler = Sampler(policy, threading.get_ident(), over_s=0.005)

    def say(line: str) -> None:
        print(f"  {line}", flush=True)
        if line.startswith("step "):
            marks.append(Mark(time.monotonic(), time.process_time(), _cpu_s_by_thread(), _rss_mb()))

    if where:
        sampler.start()
    result = train(settings, say=say)
    if where:
        sampler.stop()
        for stack, count in sampler.found.most_common(25):
            print(f"{count:6d}  {stack}")
    assert result.is_complete, result.reason
    return _figures(policy, marks) | {
        "journal_bytes_per_step": end_of(folder / "run" / "journal.jsonl") // num_steps,
        "load_average": round(os.getloadavg()[0], 1),
    }


def _figures(policy: Policy, marks: list[Mark]) -> dict[str, Any]:
    first, last = marks[0], marks[-1]
    steps = [(b.at - a.at, b.cpu_s - a.cpu_s) for a, b in pairwise(marks)]
    cpu_s = (last.cpu_s - first.cpu_s) / len(steps)
    late = sorted(late for due, late in policy.lateness if first.at <= due <= last.at)
    turns = [turn for monitor in policy.monitors for turn in monitor.slow if first.at <= turn.began <= last.at]
    return {
        "steps_measured": len(steps),
        "step_s": [round(seconds, 1) for seconds, _ in steps],
        "controller_cpu_s_per_step": [round(cpu, 2) for _, cpu in steps],
        "controller_share_of_60_s": round(cpu_s / STEP_S, 4),
        "controller_share_of_its_steps": round(cpu_s * len(steps) / (last.at - first.at), 4),
        "cpu_s_per_step_by_thread": {
            kind: round((total - first.cpu_s_by_thread[kind]) / len(steps), 2)
            for kind, total in last.cpu_s_by_thread.most_common()
        },
        "callback_late_ms": {
            "p50": _ms(late[len(late) // 2]),
            "p99": _ms(late[len(late) * 99 // 100]),
            "max": _ms(late[-1]),
        },
        "longest_blocked_ms": _ms(max((turn.wall_s for turn in turns), default=0.0)),
        "longest_blocked_cpu_ms": _ms(max((turn.cpu_s for turn in turns), default=0.0)),
        "turns_over_20_ms": sum(turn.wall_s > 0.02 for turn in turns),
        "controller_rss_mb": [round(mark.rss_mb) for mark in marks],
    }


def _settings(folder: Path, schedule: str, num_instances: int, num_steps: int) -> Settings:
    recipe = {name: value for name, value in read_recipe("quickstart").items() if name not in ("eval", "eval_interval")}
    return assemble(
        recipe,
        {
            "output_dir": folder / "run",
            "model.path": str(folder / "model"),
            "save_interval": 1,
            "report": False,
            "rollout.engine": "timed",
            "rollout.forced_lengths": str(folder / "lengths.json"),
            "rollout.num_instances": num_instances,
            "rollout.max_running": -(-NUM_PROMPTS * GROUP_SIZE // num_instances),
            "rollout.n_samples_per_prompt": GROUP_SIZE,
            "rollout.max_response_length": MAX_LENGTH,
            "rollout.threads": 1,
            **{f"rollout.costs.{name}": value for name, value in COSTS.items()},
            "schedule.preset": schedule,
            "schedule.rollout_batch_size": NUM_PROMPTS,
            "schedule.max_steps": num_steps,
            "reward.workers": 2,
            "trainer.threads": 1,
        },
        hint=print,
    )


def _write_lengths(path: Path) -> None:
    drawn = np.random.default_rng(0).lognormal(np.log(MEDIAN), SPREAD, (NUM_ROWS, GROUP_SIZE))
    path.write_text(json.dumps(np.clip(drawn.round().astype(int), 1, MAX_LENGTH).tolist()))


def _cpu_s_by_thread() -> Counter[str]:
    """Processor seconds of all threads so far, by kind: the event loop, threads for work, readers and writers."""
    found: Counter[str] = Counter()
    for thread in threading.enumerate():
        kind = "event loop" if thread is threading.main_thread() else thread.name.rpartition("-")[2]
        times = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[11:13]
        found[kind] += sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    return found


def _rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


if __name__ == "__main__":
    main()
