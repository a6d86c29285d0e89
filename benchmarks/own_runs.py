"""Runs of our own as jobs of a simulated cluster: alone beside their wall time, and two of them sharing.

    python benchmarks/own_runs.py --json benchmarks/results/own_runs.json     from the kept journals, a few seconds
    python benchmarks/own_runs.py --record ...                                train the CPU recipes again first

A journal becomes the list of the run's steps (`tailrace cluster trace`). The simulated cluster plays these steps under
the real scheduler. Wall time counts from the first response to the last step, with what is published and saved after
it. An evaluation after the last step is no part of a trace; its seconds are given beside. A second, harder question:
what does a trace made from the first half of the steps say about how long the second half took?

Sharing is a forecast that nobody has checked yet: two runs of one machine have one training device together instead of
one each, and a rollout device each. They play as many steps as the shorter of them has.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from tailrace.cluster.scheduler import Scheduler
from tailrace.observe.demand import job_demand
from tailrace.observe.demand.job_demand import JobDemand
from tailrace.observe.demand.run_demand import demand_of_run
from tailrace.sim.cluster.result import ClusterResult, simulate_cluster
from tailrace.sim.cluster.scenario_file import check_cluster

RESULTS = Path(__file__).resolve().parent / "results"
JOURNALS, TRACES = RESULTS / "journals", RESULTS / "traces"
LAST_OF_A_STEP = ("StepTrained", "WeightsPublished", "CheckpointSaved")
TRANSFER_GB_PER_S = {"two CPU cores": 10.0, "H200": 54.0}
"""To and from the training device. For the H200 as measured with pinned memory; for the CPU an assumption."""


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    name: str
    recipe: str
    machine: str
    file: str
    weights_gb: float
    optimizer_gb: float

    @property
    def journal(self) -> Path:
        return JOURNALS / self.file

    def lines(self) -> list[bytes]:
        return gzip.decompress(self.journal.read_bytes()).splitlines(keepends=True)


def _on_cpu(recipe: str, num_models: int) -> KeptRun:
    """``num_models``: the policy, and a critic of the same size with PPO. 0.5 million parameters each, in 32 bits."""
    return KeptRun(
        name=recipe, recipe=recipe, machine="two CPU cores", file=f"own_runs/{recipe}.jsonl.gz",
        weights_gb=0.002 * num_models, optimizer_gb=0.006 * num_models,
    )  # fmt: skip


def _on_gpu(name: str, recipe: str, file: str) -> KeptRun:
    """135 million parameters: 2 bytes of weights each, and 14 of a 32-bit copy, two moments and gradients."""
    return KeptRun(name=name, recipe=recipe, machine="H200", file=file, weights_gb=0.27, optimizer_gb=1.9)


RUNS = (
    _on_cpu("quickstart", 1),
    _on_gpu("answers", "SmolLM2-135M answers questions (gpu_steps.py), sync", "gpu_steps_h200/sync.jsonl.gz"),
    _on_gpu("sums", "smollm2-gpu (gpu_learning.py), sync", "gpu_learning_h200/sync.jsonl.gz"),
    _on_gpu("sums-tail", "smollm2-gpu, tail-batching", "gpu_learning_h200/tail-batching.jsonl.gz"),
)


def demand_of(lines: list[bytes]) -> JobDemand:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "journal.jsonl").write_bytes(b"".join(lines))
        return demand_of_run(Path(folder))


def wall_s(lines: list[bytes]) -> tuple[float, float]:
    """Return the seconds from the first response that was asked for to the end of the last step with its save, and what
    came after that, by the journal's own clock."""
    entries = [json.loads(line) for line in lines]
    asked = next(each["now"] for each in entries if any(do["type"] == "Submit" for do in each.get("commands", ())))
    trained = max(each["now"] for each in entries if each["event"]["type"] in LAST_OF_A_STEP)
    return trained - asked, entries[-1]["now"] - trained


def first_half(lines: list[bytes], num_steps: int) -> list[bytes]:
    """Return the entries up to the end of half of the steps."""
    ends = [index for index, line in enumerate(lines) if json.loads(line)["event"]["type"] == "StepTrained"]
    return lines[: ends[num_steps // 2 - 1] + 1]


def simulated(runs: list[tuple[KeptRun, JobDemand]], rules: str) -> ClusterResult:
    """Play the runs: with ``isolated`` each has a training device to itself, with ``pack`` one for all."""
    steps = min(len(demand.run) for _, demand in runs)
    models = [
        {
            "name": run.name, "source": str(run.journal.name), "train_devices": 1, "rollout_devices": 1,
            "steps": demand.to_dict()["steps"], "weights_gb": run.weights_gb, "optimizer_gb": run.optimizer_gb,
        }
        for run, demand in runs
    ]  # fmt: skip
    num_groups = len(runs) if rules == "isolated" else 1
    data = {
        "name": "own_runs",
        "source": "journals",
        "cluster": {
            "source": "one training device", "groups": {runs[0][0].name: num_groups}, "devices_per_node": 1,
            "transfer_gb_per_s": TRANSFER_GB_PER_S[runs[0][0].machine], "disk_gb_per_s": 1.0,
        },
        # A run needs its device for about half of its time, so two of them exceed the usual limit of 0.8.
        "rules": {"source": "all on one group", "compare": [rules], "max_jobs_per_group": len(runs), "max_duty": 2.0},
        "models": models,
        "jobs": {
            "source": "each run once", "count": len(runs), "mix": {run.name: 1 for run, _ in runs},
            "min_steps": steps, "max_steps": steps, "overlap": "serial",
        },
    }  # fmt: skip
    return simulate_cluster(check_cluster(data, Path("own_runs.toml")), rules, Scheduler)


def alone(run: KeptRun) -> dict[str, Any]:
    lines = run.lines()
    demand, (wall, after) = demand_of(lines), wall_s(lines)
    [job] = simulated([(run, demand)], "isolated").jobs
    assert job.started is not None
    found, half = job.ended - job.started, len(demand.run) // 2
    predicted = demand_of(first_half(lines, len(demand.run))).trace.step_s * (len(demand.run) - half)
    later = sum(step.seconds for step in demand.run[half:]) - demand.run[-1].sync_s  # up to the end of the last step
    return {
        "name": run.name,
        "recipe": run.recipe,
        "machine": run.machine,
        "journal": run.file,
        "steps": len(demand.run),
        "steps_per_period": demand.trace.steps,
        "duty": round(demand.trace.mean_duty, 3),
        "planned_duty": round(demand.trace.duty, 3),
        "wall_s": round(wall, 3),
        "evaluation_after_s": round(after, 3),
        "simulated_s": round(found, 3),
        "simulated_over_wall": round(found / wall, 4),
        "simulated_over_wall_with_evaluation": round(found / (wall + after), 4),
        "second_half_s": round(later, 3),
        "second_half_from_first_s": round(predicted, 3),
        "second_half_over_measured": round(predicted / later, 3),
    }


def shared(first: KeptRun, second: KeptRun) -> dict[str, Any]:
    runs = [(run, demand_of(run.lines())) for run in (first, second)]
    apart, together = simulated(runs, "isolated"), simulated(runs, "pack").figures
    return {
        "runs": [first.name, second.name],
        "machine": first.machine,
        "steps": min(len(demand.run) for _, demand in runs),
        "devices": [apart.figures.devices, together.devices],
        "makespan_s": [round(apart.figures.makespan_s, 3), round(together.makespan_s, 3)],
        "slowdown": round(together.mean_slowdown, 3),
        "switches_per_step": round(together.switches_per_step, 2),
        "saving": round(together.saving, 3),
    }


def measured() -> dict[str, Any]:
    pairs = [pair for pair in combinations(RUNS, 2) if pair[0].machine == pair[1].machine]
    return {
        "settings": {"transfer_gb_per_s": TRANSFER_GB_PER_S, "train_devices": 1, "rollout_devices": 1},
        "alone": [alone(run) for run in RUNS],
        "shared": [shared(*pair) for pair in pairs],
    }


def record(run: KeptRun) -> None:
    """Train a few steps of the recipe, and keep its journal and its trace."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tailrace", "train", run.recipe, "--output_dir", f"{folder}/run"]
        subprocess.run([*command, "--schedule.max_steps", "6", "--report", "false"], check=True)
        run.journal.parent.mkdir(parents=True, exist_ok=True)
        run.journal.write_bytes(gzip.compress((Path(folder) / "run" / "journal.jsonl").read_bytes(), mtime=0))
    job_demand.write(replace(demand_of(run.lines()), name=run.name), TRACES / f"{run.name}.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--record", action="store_true", help="train the recipe for two CPU cores again (a minute)")
    options = parser.parse_args()
    if options.record:
        for run in RUNS:
            if run.machine != "H200":
                record(run)
    result = measured()
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
