"""Many jobs on shared accelerators in virtual time, beside the figures of PlexRL.

    python benchmarks/cluster.py --json benchmarks/results/cluster.json     a few minutes on one core (`cpu_s` in it)
    python benchmarks/cluster.py --backlog --json benchmarks/results/cluster_backlog.json
                                    the backlog alone, with 120 jobs of 100 to 500 steps (half an hour on one core)
    python benchmarks/cluster.py --full ...                                 everything at this size, 8192 devices too

Scenarios and assumptions are those of `scenarios/cluster_*.toml`; nothing here is tuned. Every figure is the mean over
the seeds, with the least and the most. The default sizes have the scenarios' jobs with a twentieth of their steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cluster_orderings
import cluster_runs
import tables


def measured(options: argparse.Namespace) -> dict[str, Any]:
    is_full = options.full or options.backlog
    sizes = cluster_runs.FULL if is_full else cluster_runs.TINY if options.tiny else cluster_runs.DEFAULT
    began, began_cpu = time.monotonic(), time.process_time()
    result: dict[str, Any] = {"settings": asdict(sizes)}
    questions = {
        "backlog": lambda: cluster_runs.backlog(sizes, 2048),
        "unknown": lambda: cluster_runs.unknown(sizes),
        "arrivals": lambda: cluster_runs.arrivals(sizes),
        "two_jobs": lambda: cluster_runs.two_jobs(sizes),
        "arbitration": lambda: cluster_runs.arbitration(sizes),
    }
    if options.backlog:
        questions = {"backlog": questions["backlog"]}
    if options.full:
        larger = replace(sizes, jobs=4 * sizes.jobs)
        questions["backlog_8192"] = lambda: cluster_runs.backlog(larger, 8192)
    for name, question in questions.items():
        result[name] = question()
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if not options.backlog:
        result["orderings"] = cluster_orderings.orderings(result)
    return result | {
        "seconds": round(time.monotonic() - began),
        "cpu_s": round(time.process_time() - began_cpu),
        "machine": f"{platform.machine()}, one core, Python {platform.python_version()}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--full", action="store_true", help="whole jobs (hours on one core)")
    parser.add_argument("--backlog", action="store_true", help="only the backlog, of whole jobs")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to see that it runs")
    options = parser.parse_args()
    result = measured(options)
    for name, (file, make) in tables.TABLES.items():
        if file == ("cluster_backlog.json" if options.backlog else "cluster.json"):
            print("\n".join([f"\n## {name}", *make(result)]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
