"""Run schedules in virtual time: `tailrace simulate SCENARIO [--schedules a,b,c] [--json FILE] [--journals DIR]`.

A scenario with a `[cluster]` section has many jobs, and compares policies that share accelerators among them.

Exit status: 0 every schedule was simulated to its end, 1 one failed or was stopped, 2 it could not start.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tailrace.cli import simulate_cluster
from tailrace.core.journal import encode
from tailrace.observe.schedules import schedule_table
from tailrace.sim.cluster.scenario_file import is_cluster_scenario
from tailrace.sim.named_schedule import left_out_lines, schedule_of
from tailrace.sim.result import SimResult, simulate
from tailrace.sim.scenario import Scenario
from tailrace.sim.scenario_file import load_scenario


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", type=Path, help="a TOML file, such as scenarios/rollpacker_7b_8k.toml")
    parser.add_argument("--schedules", metavar="A,B,C", help="or policies; default: those the scenario compares")
    parser.add_argument("--steps", type=int, metavar="N", help="optimizer steps, instead of the scenario's")
    parser.add_argument("--seed", type=int, metavar="N", help="of lengths and rewards, instead of the scenario's")
    parser.add_argument("--journals", type=Path, metavar="DIR", help="keep DIR/SCHEDULE/journal.jsonl of each run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    parser.add_argument("--html", type=Path, metavar="FILE", help="draw a cluster scenario there, as a page")


def run(options: argparse.Namespace) -> int:
    try:
        if is_cluster_scenario(options.scenario):
            return simulate_cluster.run(options)
        if options.html is not None:
            raise ValueError("--html: only scenarios with a [cluster] section are drawn; `tailrace report` draws a run")
        scenario = _scenario(options)
        names = _names(options, scenario)
        for line in (line for name in names for line in left_out_lines(scenario, name)):
            print(line)
        results: list[SimResult] = []
        try:
            for name in names:
                results.append(_simulate(scenario, name, options.journals))
        except KeyboardInterrupt:
            return _stop(names, results)
        _print(results)
        if options.json is not None:
            options.json.write_text(json.dumps([result.to_dict() for result in results], indent=2) + "\n")
    except ValueError as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tailrace: the results cannot be written: {error}", file=sys.stderr)
        return 2
    return 0 if all(result.is_complete for result in results) else 1


def _names(options: argparse.Namespace, scenario: Scenario) -> Sequence[str]:
    """The schedules to simulate. A schedule that cannot work is refused before any is simulated."""
    if options.schedules is None:
        names, where = scenario.schedule.compare, f"{options.scenario}: "
    else:
        names, where = tuple(name.strip() for name in options.schedules.split(",")), "--schedules: "
    for name in names:
        try:
            schedule_of(scenario, name)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None
    return names


def _stop(names: Sequence[str], results: Sequence[SimResult]) -> int:
    """After an interrupt: print the results of the schedules that were complete, and return the exit status."""
    if results:
        _print(results)
    print(f"\ntailrace: stopped while simulating {names[len(results)]}; no file was written", file=sys.stderr)
    return 1


def _scenario(options: argparse.Namespace) -> Scenario:
    scenario = load_scenario(options.scenario)
    if options.steps is not None:
        if options.steps < 1:
            raise ValueError(f"--steps must be at least 1, got {options.steps}")
        scenario = scenario.with_steps(options.steps)
    return scenario if options.seed is None else scenario.with_seed(options.seed)


def _simulate(scenario: Scenario, name: str, journals: Path | None) -> SimResult:
    began = time.monotonic()
    print(f"simulating {name} ...", end=" ", file=sys.stderr, flush=True)
    if journals is None:
        result = simulate(scenario, name)
    else:
        folder = journals / name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "journal.jsonl").open("w") as file:
            result = simulate(scenario, name, record=lambda entry: print(encode(entry), file=file))
    seconds, steps = time.monotonic() - began, result.figures.num_steps
    print(f"{steps} steps, {result.num_events} events in {seconds:.1f} s", file=sys.stderr, flush=True)
    return result


def _print(results: Sequence[SimResult]) -> None:
    cells = schedule_table.cells({result.schedule: result.figures for result in results})
    print("\n".join(schedule_table.lines(cells)))
    for result in results:
        if not result.is_complete:
            print(f"{result.schedule} did not come to its end: {result.reason}")
    first = results[0]
    if first.num_censored:
        print(f"{first.num_censored} of {first.num_recorded} recorded lengths are censored: how they go on is drawn")
