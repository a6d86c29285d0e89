"""What the controller of a run costs: how long its event loop is blocked, what it writes, how long readers take.

    python benchmarks/controller.py --json FILE [--steps 200] [--where]

1. `run`: a real run of 128 x 8 responses of up to 2,000 tokens, replayed by engine processes as fast as they can. The
   longest turn of the event loop (wall and processor time), and how late a callback came that was due every 5 ms:
   that also counts waiting for the interpreter's lock and for a core. The start of processes is shown apart.
2. `growth`: 2,048 responses in flight for 300 s each step, in virtual time with the real core, journal, metrics,
   payload store, reward tasks and checkpoints: bytes and processor seconds per step.
3. `readers`: the same for `--steps` steps: wall and processor seconds of `tailrace report`, of `tailrace doctor`, and
   of all that a resumed run does with its past.

`--where` prints where the loop was while it was blocked for more than 5 ms. Takes about ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import controller_growth
import controller_run

AIMS = {"blocked_ms": 20.0, "journal_bytes_per_step": 3_000_000, "share_of_a_core": 0.02, "reader_s": 10.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--steps", type=int, default=200, help="steps of the long journal")
    parser.add_argument("--where", action="store_true", help="print where the event loop was blocked")
    parser.add_argument(
        "--only", choices=("run", "growth", "readers"), help="measure one part; keep the others of FILE"
    )
    options = parser.parse_args()
    known = options.json is not None and options.json.exists() and options.only
    result: dict[str, Any] = json.loads(options.json.read_text()) if known else {}
    result |= {"benchmark": "controller", "aims": AIMS}
    with tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "run"):
            result["run"] = controller_run.measure(Path(folder), where=options.where)
        if options.only in (None, "growth"):
            result["growth"] = controller_growth.measure_steps(Path(folder))
        if options.only in (None, "readers"):
            result["readers"] = controller_growth.measure_readers(Path(folder), options.steps)
    result |= {
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "versions": {"tailrace": version("tailrace"), "python": platform.python_version()},
    }
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
