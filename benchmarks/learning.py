"""Do the algorithms teach? Each raises held-out accuracy on the quickstart's task; every run is kept in the table.

    python benchmarks/learning.py --json FILE [--algorithms ppo,grpo,dapo,gspo,cispo] [--seeds 5] [--jobs 1]

A run is a real ``tailrace train`` of a built-in recipe (``grpo`` is the quickstart itself) with a seed of its own. It
evaluates on the first ``--eval-prompts`` held-out prompts before its first step and after its last, sampled at
temperature 1 and greedy. ``gain`` is after minus before; its mean stands with the 95 % interval of Student's t over the
seeds. A run that fails stays in the table with its last words and counts in no mean.

``--jobs`` runs so many trainings at the same time: give each at most its share of the cores with ``--threads``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

RECIPES = {
    "ppo": "quickstart-ppo",
    "grpo": "quickstart",
    "dapo": "quickstart-dapo",
    "gspo": "quickstart-gspo",
    "cispo": "quickstart-cispo",
}
EVAL_SETS = {"sampled": 1.0, "greedy": 0.0}
"""Name of the evaluation set, and its temperature."""
STUDENT_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    algorithm: str
    seed: int
    threads: int
    eval_prompts: int
    max_steps: int | None

    def run(self) -> dict[str, Any]:
        """One row of the table."""
        about = {"algorithm": self.algorithm, "seed": self.seed}
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            ended = self._train(Path(folder) / "run")
            seconds = {"seconds": round(time.monotonic() - start, 1)}
            if ended.returncode:
                row = about | seconds | {"failure": ended.stdout[-1000:]}
            else:
                row = about | _read(Path(folder) / "run") | seconds | {"failure": None}
        print(json.dumps(row), flush=True)
        return row

    def _train(self, output: Path) -> subprocess.CompletedProcess[str]:
        # The interval is longer than any run: evaluations at the start and at the end only.
        settings: dict[str, Any] = {
            "output_dir": str(output),
            "seed": self.seed,
            "eval": [_eval_set(name, temperature, self.eval_prompts) for name, temperature in EVAL_SETS.items()],
            "eval_interval": 1_000_000,
            "save_interval": None,
            "model.device": "cpu",
            "rollout.threads": self.threads,
            "trainer.threads": self.threads,
        } | ({"schedule.max_steps": self.max_steps} if self.max_steps else {})
        flags = [part for name, value in settings.items() for part in (f"--{name}", json.dumps(value))]
        return subprocess.run(
            [sys.executable, "-m", "tailrace", "train", RECIPES[self.algorithm], *flags],
            env=os.environ | {"OMP_NUM_THREADS": str(self.threads)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def _eval_set(name: str, temperature: float, max_prompts: int) -> dict[str, Any]:
    return {"name": name, "path": "builtin:arith-heldout", "temperature": temperature, "max_prompts": max_prompts}


def _read(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [row for row in rows if "reward/mean" in row]
    found: dict[str, Any] = {}
    for name in EVAL_SETS:
        accuracies = [row[key] for row in rows if (key := f"eval/{name}/avg@1") in row]
        found |= {f"{name}_before": accuracies[0], f"{name}_after": accuracies[-1]}
        found |= {f"{name}_gain": round(accuracies[-1] - accuracies[0], 6)}
    return found | {
        "reward_first": steps[0]["reward/mean"],
        "reward_last": steps[-1]["reward/mean"],
        "steps": len(steps),
        "samples_trained": sum(row["groups/num_samples"] for row in steps),
        "groups_left_out": sum(row["groups/num_dropped"] for row in steps),
    }


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one algorithm: mean and 95 % interval of the gain, over the runs that ended."""
    ended = [row for row in rows if row["failure"] is None]
    summary: dict[str, Any] = {"runs": len(rows), "failures": len(rows) - len(ended)}
    for name in EVAL_SETS if ended else ():
        gains = [row[f"{name}_gain"] for row in ended]
        mean, half = fmean(gains), _half_width(gains)
        summary[f"{name}_gain"] = {
            "mean": round(mean, 4),
            "interval_95": None if half is None else [round(mean - half, 4), round(mean + half, 4)],
            "smallest": min(gains),
        }
        summary[f"{name}_after_mean"] = round(fmean(row[f"{name}_after"] for row in ended), 4)
    return summary


def _half_width(values: list[float]) -> float | None:
    """Of the 95 % interval of the mean; one value has none."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    quantile = STUDENT_T_975[freedom - 1] if freedom <= len(STUDENT_T_975) else STUDENT_T_975[-1]
    return quantile * stdev(values) / len(values) ** 0.5


def main() -> None:
    options = _parse()
    jobs = [
        Job(
            algorithm=algorithm,
            seed=seed,
            threads=options.threads,
            eval_prompts=options.eval_prompts,
            max_steps=options.steps,
        )
        for seed in range(options.seeds)
        for algorithm in options.algorithms
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        table = list(pool.map(Job.run, jobs))
    by_algorithm = {name: [row for row in table if row["algorithm"] == name] for name in options.algorithms}
    result = {
        "benchmark": "learning",
        "summary": {name: summarize(rows) for name, rows in by_algorithm.items()},
        "runs": [row for rows in by_algorithm.values() for row in rows],
        "settings": {key: asdict(jobs[0])[key] for key in ("threads", "eval_prompts", "max_steps")}
        | {"jobs": options.jobs, "recipes": {name: RECIPES[name] for name in options.algorithms}},
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
    }
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _algorithms(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in RECIPES]:
        raise argparse.ArgumentTypeError(f"unknown algorithm {unknown[0]}; known: {', '.join(RECIPES)}")
    return names


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--algorithms", type=_algorithms, default=list(RECIPES), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each algorithm, with seeds 0, 1, ...")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each process of a training")
    parser.add_argument("--eval-prompts", type=int, default=1000, help="held-out prompts, of 2,000")
    parser.add_argument("--steps", type=int, help="optimizer steps; default: the recipe's 40")
    return parser.parse_args()


if __name__ == "__main__":
    main()
