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
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tailrace.core.journal import Entry
from tailrace.observe import journal_file

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


def machine(parallel: int, cores_each: int) -> dict[str, Any]:
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "parallel": parallel,
        "cores_each": cores_each,
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
    }
