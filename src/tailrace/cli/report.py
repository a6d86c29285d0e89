"""Show a run as one HTML page: `tailrace report RUN [--output FILE]`.

The run may be running, stopped or finished. Exit status: 0 written, 2 not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: report.html in the run directory")


def run(options: argparse.Namespace) -> int:
    try:
        from tailrace.dashboard.report import write_report

        path = write_report(options.run, options.output)
    except ModuleNotFoundError as error:
        if error.name not in ("bokeh", "jinja2", "markupsafe"):
            raise
        print(f"tailrace: a report needs {error.name}: pip install 'tailrace[report]'", file=sys.stderr)
    except ValueError as error:
        print(f"tailrace: {error}", file=sys.stderr)
    except OSError as error:
        print(f"tailrace: the report cannot be written: {error}", file=sys.stderr)
    else:
        print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
        return 0
    return 2
