"""Runs of `tailrace compare`, each on cores of its own, and what their journals say.

A comparison lies in FOLDER/seed-N/SCHEDULE/journal.jsonl with its figures in FOLDER/seed-N.json. One that is already
there is not run again, so a folder can be looked at a second time, or on another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tailrace.core.journal import Entry
from tailrace.observe.journal import journal_file

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

    def run(self, cores: Sequence[int], *, side_by_side: bool) -> None:
        """On these cores only; its words go to FOLDER/seed-N.log.

        ``side_by_side``: the schedules share the cores out and run at the same time, so that all of them meet the
        machine as fast or slow as it then is. `tailrace compare` finds their runs finished.
        """
        if self.figures.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if side_by_side:
            each = len(cores) // len(self.schedules)
            if not each:
                raise SystemExit(f"{len(self.schedules)} schedules side by side need as many cores, not {len(cores)}")
            shares = [cores[number * each : (number + 1) * each] for number in range(len(self.schedules))]
            with ThreadPoolExecutor(len(shares)) as pool:
                list(pool.map(self._compare, [(name,) for name in self.schedules], shares))
        self._compare(self.schedules, cores)

    def _compare(self, schedules: tuple[str, ...], cores: Sequence[int]) -> None:
        figures = self.figures if schedules == self.schedules else self.folder / f"seed-{self.seed}-{schedules[0]}.json"
        given = {"seed": self.seed, "output_dir": str(self.runs), **self.settings}
        command = [sys.executable, "-m", "tailrace", "compare", RECIPE, "--schedules", ",".join(schedules)]
        command += ["--json", str(figures)]
        command += [part for name, value in given.items() for part in (f"--{name}", json.dumps(value))]
        print(f"seed {self.seed}: {', '.join(schedules)} on cores {','.join(map(str, cores))}", flush=True)
        with figures.with_suffix(".log").open("w") as log:
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


def parse(description: str | None, *, seeds: int) -> argparse.Namespace:
    """The options of a script that looks at comparisons; ``seeds`` of them unless told otherwise."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--seeds", type=int, default=seeds, help="comparisons, with seeds 0, 1, ...")
    parser.add_argument("--parallel", type=int, default=1, help="comparisons at the same time")
    parser.add_argument("--cores-each", type=int, default=2, help="CPU cores of each comparison")
    parser.add_argument(
        "--side-by-side",
        action="store_true",
        help="the schedules of a comparison at the same time, each on its cores",
    )
    parser.add_argument("--keep", type=Path, help="keep the runs here; runs that are here already are not run again")
    parser.add_argument("--steps", type=int, help="optimizer steps, instead of the recipe's")
    return parser.parse_args()


@contextmanager
def compared(
    options: argparse.Namespace, schedules: tuple[str, ...], settings: Mapping[str, Any] | None = None
) -> Iterator[list[Comparison]]:
    """The comparisons that were asked for, with their runs as long as the context lasts; ``settings`` instead of the
    recipe's."""
    steps = {} if options.steps is None else {"schedule.max_steps": options.steps}
    settings = {**(settings or {}), **steps}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).absolute()
        found = [
            Comparison(folder=folder, seed=seed, schedules=_turned(schedules, seed), settings=settings)
            for seed in range(options.seeds)
        ]
        run_all(found, options)
        yield found


def _turned(schedules: tuple[str, ...], by: int) -> tuple[str, ...]:
    """Another one first with every seed: what comes first or last in a comparison is not always the same schedule."""
    by %= len(schedules)
    return schedules[by:] + schedules[:by]


def write(options: argparse.Namespace, benchmark: str, result: Mapping[str, Any]) -> None:
    if options.json:
        given = {
            "benchmark": benchmark,
            "recipe": RECIPE,
            "steps": options.steps,
            **result,
            "machine": machine(options),
        }
        options.json.write_text(json.dumps(given, indent=2) + "\n", encoding="utf-8")


def run_all(comparisons: Sequence[Comparison], options: argparse.Namespace) -> None:
    """So many at the same time, each on ``cores_each`` cores that no other one of them uses."""
    parallel, cores_each = options.parallel, options.cores_each
    available = sorted(os.sched_getaffinity(0))
    if parallel * cores_each > len(available):
        raise SystemExit(f"{parallel} x {cores_each} cores are asked for; there are {len(available)}")
    places: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for number in range(parallel):
        places.put(available[number * cores_each : (number + 1) * cores_each])

    def run(comparison: Comparison) -> None:
        cores = places.get()
        try:
            comparison.run(cores, side_by_side=options.side_by_side)
        finally:
            places.put(cores)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(run, comparisons))


def machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "parallel": options.parallel,
        "cores_each": options.cores_each,
        "side_by_side": options.side_by_side,
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
    }
