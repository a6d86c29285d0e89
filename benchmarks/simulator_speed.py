"""How long does it take to simulate 100 steps of 128 prompts x 8 responses on 64 instances, and does memory grow?

    python benchmarks/simulator_speed.py --json benchmarks/results/simulator_speed.json

One core, CPU seconds. Each run has a process of its own, whose peak memory is noted.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from simulated_runs import load

from tailrace.sim.result import simulate

NUM_INSTANCES = 64
SCHEDULES = ("sync", "tail-batching", "active-partial")


def measure(schedule: str, num_steps: int) -> dict[str, Any]:
    scenario = load("rollpacker_14b_16k").with_steps(num_steps)
    engine = scenario.engine.model_copy(update={"num_instances": NUM_INSTANCES})
    began = time.process_time()
    result = simulate(scenario.model_copy(update={"engine": engine}), schedule)
    assert result.is_complete, result.reason
    return {
        "schedule": schedule,
        "steps": num_steps,
        "cpu_s": round(time.process_time() - began, 1),
        "events": result.num_events,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for schedule in SCHEDULES:
        for num_steps in (10, 100, 300) if schedule == "sync" else (100,):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                rows.append(pool.submit(measure, schedule, num_steps).result())
            print(rows[-1], flush=True)
    if options.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        options.json.write_text(
            json.dumps({"instances": NUM_INSTANCES, "machine": machine, "runs": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
