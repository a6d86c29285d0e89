"""Run the rules of a cluster scenario in virtual time: `tailrace simulate SCENARIO` for a file with `[cluster]`."""

from __future__ import annotations

import argparse
import json
import sys
import time

from tailrace.cluster.scheduler import Scheduler
from tailrace.sim.cluster.result import ClusterResult, simulate_cluster
from tailrace.sim.cluster.scenario import ClusterScenario
from tailrace.sim.cluster.scenario_file import load_cluster_scenario
from tailrace.sim.cluster.table import lines


def run(options: argparse.Namespace) -> int:
    """Simulate and print. Mistakes of the user are raised as ``ValueError``."""
    if options.journals is not None:
        raise ValueError("--journals: a cluster scenario has no journals")
    scenario = _scenario(options)
    names = scenario.rules.compare
    if options.schedules is not None:
        names = tuple(name.strip() for name in options.schedules.split(","))
    for name in names:
        scenario.partition_of(scenario.rules_of(name))
    results = [_simulate(scenario, name) for name in names]
    print("\n".join(lines(results)))
    for result in results:
        for job in result.jobs:
            if job.slowdown is None:
                print(f"{result.policy}: {job.id} {job.reason} after {job.steps} steps")
    if options.json is not None:
        options.json.write_text(json.dumps([result.to_dict() for result in results]) + "\n")
    if options.html is not None:
        # Drawing needs packages that a simulation does not.
        from tailrace.dashboard.cluster_page import write_cluster_page

        print(f"page: {write_cluster_page([result.to_dict() for result in results], options.html)}")
    return 0 if all(result.is_complete for result in results) else 1


def _scenario(options: argparse.Namespace) -> ClusterScenario:
    scenario = load_cluster_scenario(options.scenario)
    if options.steps is not None:
        if options.steps < 1:
            raise ValueError(f"--steps must be at least 1, got {options.steps}")
        scenario = scenario.with_steps(options.steps)
    return scenario if options.seed is None else scenario.with_seed(options.seed)


def _simulate(scenario: ClusterScenario, name: str) -> ClusterResult:
    began = time.monotonic()
    print(f"simulating {name} ...", end=" ", file=sys.stderr, flush=True)
    result = simulate_cluster(scenario, name, Scheduler)
    seconds, figures = time.monotonic() - began, result.figures
    print(f"{figures.num_steps} steps, {figures.num_events} events in {seconds:.1f} s", file=sys.stderr, flush=True)
    return result
