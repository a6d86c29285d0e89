"""How many operations per second does the ledger sustain with 10,000 groups in flight?

    python benchmarks/ledger.py --json benchmarks/results/ledger.json

Steady state at bound 8: instances of three versions keep the ledger full, groups finish in random order, one in fifty
is aborted, one in fifty filtered, a batch trains when it is ready. Reserve, occupy, delete and consume count as
operations; the dry run before each reserve is done and not counted. Seconds are CPU seconds of the one process, driver
included, so that a busy machine does not blur the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any

from tailrace.core.ids import GroupId
from tailrace.core.ledger.admission import AdmissionRule, LedgerRules
from tailrace.core.ledger.ledger import Ledger

MAX_STALENESS = 8
IN_FLIGHT = 10_000
LAGS = (0, 2, 5)
"""How far the instances' versions are behind the batch that is collected."""
WORKLOADS = {
    "strict": (AdmissionRule.DEADLINE, 1.0),
    "strict, capacity 1.25 batches": (AdmissionRule.DEADLINE, 1.25),
    "count": (AdmissionRule.COUNT, 1.0),
}


class Load:
    def __init__(self, rules: LedgerRules, seed: int) -> None:
        self.ledger = Ledger(rules)
        self.random = random.Random(seed)
        self.reserved: list[GroupId] = []
        self.num_groups = self.num_operations = 0

    def run(self, operations: int) -> None:
        end = self.num_operations + operations
        while self.num_operations < end:
            self.fill()
            for _ in range(64):
                self.finish()
            while self.ledger.is_ready:
                done = self.ledger.consume()
                self.num_operations += 1
                if done.expired:
                    gone = set(done.expired)
                    self.reserved = [group for group in self.reserved if group not in gone]

    def fill(self) -> None:
        for lag in LAGS:
            version = max(0, self.ledger.current - lag)
            while self.ledger.can_reserve(version):
                group = GroupId("train", 0, self.num_groups)
                self.ledger.reserve(group, version)
                self.reserved.append(group)
                self.num_groups += 1
                self.num_operations += 1

    def finish(self) -> None:
        if not self.reserved:
            return
        index, fate = self.random.randrange(len(self.reserved)), self.random.random()
        self.reserved[index], self.reserved[-1] = self.reserved[-1], self.reserved[index]
        group = self.reserved.pop()
        if fate >= 0.02:
            self.ledger.occupy(group)
            self.num_operations += 1
        if fate < 0.04:
            self.ledger.delete(group)
            self.num_operations += 1


def measure(admission: AdmissionRule, over_provision: float, *, runs: int, operations: int) -> dict[str, Any]:
    capacity = -(-IN_FLIGHT // (MAX_STALENESS + 1))
    rules = LedgerRules(
        batch_size=int(capacity / over_provision), max_staleness=MAX_STALENESS, admission=admission, capacity=capacity
    )
    load = Load(rules, seed=0)
    load.run(10 * IN_FLIGHT)
    in_flight, rates = [], []
    for _ in range(runs):
        before, start = load.num_operations, time.process_time()
        load.run(operations)
        rates.append((load.num_operations - before) / (time.process_time() - start))
        in_flight.append(len(load.ledger.entries))
    load.ledger.check()
    return {
        "operations_per_cpu_s": round(statistics.median(rates)),
        "of_each_run": [round(rate) for rate in rates],
        "groups_in_flight": round(statistics.mean(in_flight)),
        "batch_size": rules.batch_size,
        "capacity": rules.capacity,
        "batches_trained": load.ledger.current,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--operations", type=int, default=100_000, help="per run")
    options = parser.parse_args()
    result: dict[str, Any] = {"max_staleness": MAX_STALENESS, "workloads": {}}
    for name, (admission, over_provision) in WORKLOADS.items():
        row = measure(admission, over_provision, runs=options.runs, operations=options.operations)
        result["workloads"][name] = row
        rate, groups = row["operations_per_cpu_s"], row["groups_in_flight"]
        print(f"{name:32} {rate:>9,} operations per CPU second, {groups:,} groups in flight")
    result["machine"] = f"{platform.machine()}, one of {os.cpu_count()} cores, Python {platform.python_version()}"
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
