"""Runs of `tailrace compare`, each on cores of its own, and what their journals say.

A comparison lies in FOLDER/seed-N/SCHEDULE/journal.jsonl with its figures in FOLDER/seed-N.json. One that is already
there is not run again, so a folder can be looked at a second time, or on another machine.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.groups import GroupPhase
from tailrace.core.ids import GroupId
from tailrace.core.journal import Entry, replay
from tailrace.core.state import State
from tailrace.core.trajectory import TrajectoryPhase
from tailrace.observe import journal_file
from tailrace.policies.strategies import policies_of

RECIPE = "long-tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One `tailrace compare`."""

    folder: Path
    seed: int
    schedules: tuple[str, ...]
    settings: Mapping[str, Any]
    """Instead of the recipe's."""

    @property
    def figures(self) -> Path:
        return self.folder / f"seed-{self.seed}.json"

    @property
    def runs(self) -> Path:
        return self.folder / f"seed-{self.seed}"

    def run(self, cores: Sequence[int]) -> None:
        """On these cores only; its words go to FOLDER/seed-N.log."""
        if self.figures.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        given = {"seed": self.seed, "output_dir": str(self.runs), **self.settings}
        command = [sys.executable, "-m", "tailrace", "compare", RECIPE, "--schedules", ",".join(self.schedules)]
        command += ["--json", str(self.figures)]
        command += [part for name, value in given.items() for part in (f"--{name}", json.dumps(value))]
        print(f"seed {self.seed}: {', '.join(self.schedules)} on cores {','.join(map(str, cores))}", flush=True)
        with (self.folder / f"seed-{self.seed}.log").open("w") as log:
            pin = lambda: os.sched_setaffinity(0, cores)  # noqa: E731
            ended = subprocess.run(command, stdout=log, stderr=log, preexec_fn=pin, check=False)
        if ended.returncode:
            words = Path(log.name).read_text(encoding="utf-8")[-2000:]
            raise SystemExit(f"seed {self.seed} ended with exit status {ended.returncode}:\n{words}")

    def rows(self) -> list[dict[str, Any]]:
        """The figures of `tailrace compare`, one row per schedule."""
        found: list[dict[str, Any]] = json.loads(self.figures.read_text(encoding="utf-8"))
        return found

    def config(self, schedule: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs / schedule / "config.json").read_text(encoding="utf-8"))
        return found

    def journal(self, schedule: str) -> list[Entry]:
        return [entry for _, entry in journal_file.read(self.runs / schedule / "journal.jsonl")]


def run_all(comparisons: Sequence[Comparison], *, parallel: int, cores_each: int) -> None:
    """So many at the same time, each on ``cores_each`` cores that no other one of them uses."""
    available = sorted(os.sched_getaffinity(0))
    if parallel * cores_each > len(available):
        raise SystemExit(f"{parallel} x {cores_each} cores are asked for; there are {len(available)}")
    places: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for number in range(parallel):
        places.put(available[number * cores_each : (number + 1) * cores_each])

    def run(comparison: Comparison) -> None:
        cores = places.get()
        try:
            comparison.run(cores)
        finally:
            places.put(cores)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(run, comparisons))


def conservation(entries: Sequence[Entry]) -> dict[str, int]:
    """What became of every prompt that was issued, as the journal and the coordinator's last state have it.

    Issued, trained, filtered and dropped are counted in the journal; the others are what the coordinator still holds
    when the journal is replayed to its end. So the two sides of ``adds_up`` come from different places.
    """
    issued, trained, left_out = _counted(entries)
    held = _held(entries)
    parts = {"trained": len(trained), **left_out, **held}
    return {
        "issued": len(issued),
        **parts,
        "adds_up": int(sum(parts.values()) == len(issued)),
        "trained_twice": sum(count - 1 for count in trained.values()),
    }


def _counted(entries: Sequence[Entry]) -> tuple[set[GroupId], Counter[GroupId], dict[str, int]]:
    issued: set[GroupId] = set()
    trained: Counter[GroupId] = Counter()
    left_out = {"filtered": 0, "dropped": 0}
    step: do.TrainStep | None = None
    for entry in entries:
        if isinstance(entry.event, ev.PromptsOffered) and entry.event.source == "train":
            issued |= {GroupId("train", epoch, prompt) for epoch, prompt in entry.event.prompts}
        if isinstance(entry.event, ev.StepTrained) and step is not None:
            trained.update({trajectory.group for trajectory in step.trajectories})
        for command in entry.commands:
            match command:
                case do.TrainStep():
                    step = command
                case do.LeaveOut(filtered=filtered, dropped=dropped):
                    left_out["filtered"] += len(filtered)
                    left_out["dropped"] += len(dropped)
                case do.CloseRound(dropped=dropped):
                    left_out["dropped"] += len(dropped)
    return issued, trained, left_out


def _held(entries: Sequence[Entry]) -> dict[str, int]:
    first = entries[0].event
    assert isinstance(first, ev.RunStarted)
    coordinator = Coordinator(first.schedule, policies=policies_of(first.schedule))
    for _ in replay(coordinator, entries):
        pass
    state = codec.decode(State, coordinator.snapshot())
    held = {"queued": len(state.held), "buffered": 0, "in_flight": 0}
    for group in state.groups.values():
        if group.id.source != "train":
            continue
        is_running = any(member.phase is TrajectoryPhase.RUNNING for member in group.members.values())
        queued = group.phase is GroupPhase.DEFERRED
        held["queued" if queued else "in_flight" if is_running else "buffered"] += 1
    return held


def machine(parallel: int, cores_each: int) -> dict[str, Any]:
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "parallel": parallel,
        "cores_each": cores_each,
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
    }
