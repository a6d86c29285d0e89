"""Hold the ledger to its model at length: a million random operations, then every state of small worlds.

    python scripts/ledger_check.py [--operations N] [--seed N]

The model is that of the tests (`tests/core/ledger_oracle.py`, `tests/core/ledger_worlds.py`). The first mismatch ends
the check with the assertion and the ledger's state, so a printed count of operations is a count of agreements.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from core.ledger_oracle import check_histories
from core.ledger_worlds import explore

WORLDS = [
    (max_staleness, batch_size, capacity)
    for max_staleness in range(3)
    for batch_size in (1, 2, 3)
    for capacity in range(batch_size, 4)
] + [(3, 1, 1), (3, 1, 2), (3, 2, 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    counts = check_histories(options.seed, options.operations)
    share = counts.refused / counts.asked
    print(f"{counts.operations:,} random operations (bound 0..4, batch 1..6, capacity from 1 to 3 batches)")
    print(f"  readiness: {counts.ready_states:,} ready states, mismatches 0")
    print(f"  admission: {counts.asked:,} asked, {counts.refused:,} refused though feasible ({share:.2%}), unsafe 0")
    print(f"  training: {counts.batches:,} batches, violations 0; {counts.expired:,} groups expired, none needlessly")
    print("every reachable state of small worlds, against the model and brute force: mismatches 0")
    for max_staleness, batch_size, capacity in WORLDS:
        states, transitions = explore(batch_size=batch_size, capacity=capacity, max_staleness=max_staleness)
        world = f"bound {max_staleness}, batch {batch_size}, capacity {capacity}"
        print(f"  {world}: {states:,} states, {transitions:,} transitions", flush=True)


if __name__ == "__main__":
    main()
