"""Does the scheduler remember more and more while jobs come and go?

    python benchmarks/cluster_memory.py --jobs 100000 --json benchmarks/results/cluster_memory.json

Jobs with names and demands of their own come every 30 s to a cluster of 3 node groups; each runs two phases, and the
oldest of more than five ends. `bytes`: of all objects that the scheduler can reach, the most within 20 jobs, after so
many jobs. The jobs are those of `tests/cluster/test_forgetting.py`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1] / "tests")  # in place of this folder, which has a cluster.py

from cluster.test_forgetting import Stream, largest_bytes  # noqa: E402
from tailrace.cluster.settings import Order, Policy  # noqa: E402

NUM_LOOKS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    stream = Stream(policy=Policy.SPREAD_BACKFILL, order=Order.RESPONSE)
    stream.let_come(30)
    began, rows = time.process_time(), [{"jobs": stream.num_come, "bytes": largest_bytes(stream)}]
    for number in range(1, NUM_LOOKS + 1):
        stream.let_come(max(0, options.jobs * number // NUM_LOOKS - stream.num_come))
        rows.append({"jobs": stream.num_come, "bytes": largest_bytes(stream)})
        print(f"{rows[-1]['jobs']:8,} jobs: {rows[-1]['bytes']:9,} bytes")
    seconds = round(time.process_time() - began, 1)
    result = {"python": platform.python_version(), "cpu_s": seconds, "rows": rows}
    print(f"{seconds} CPU seconds")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
