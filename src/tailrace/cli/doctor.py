"""Say what a run waits for and what is wrong with it: `tailrace doctor RUN [--json]`.

The run may be running, stopped or finished. Exit status: 0 no problem found, 1 problems found, 2 no such run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")


def run(options: argparse.Namespace) -> int:
    from tailrace.dashboard.doctor import as_json, examine, lines

    try:
        diagnosis = examine(options.run)
    except (ValueError, OSError) as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    print(json.dumps(as_json(diagnosis), indent=2) if options.json else "\n".join(lines(diagnosis)))
    return 1 if diagnosis.findings else 0
