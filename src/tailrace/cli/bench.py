"""Measure this machine: decode, prefill, training, weights: `tailrace bench [MODEL] [--json FILE] [--quick]`.

Every figure stands beside what the machine's memory bandwidth and arithmetic allow. Exit status: 0 measured, 2 it could
not start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.config.load import SettingsError

if TYPE_CHECKING:
    from tailrace.commands.bench.measure import BenchReport
    from tailrace.sizing.speed_bounds import Figure


def configure(parser: argparse.ArgumentParser) -> None:
    default = "default: tiny-arith on a CPU; on a GPU smollm2-135m, or a model of its shape"
    parser.add_argument("model", nargs="?", help=f"a directory, a Hugging Face id, tiny-arith; {default}")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:N (default: auto)")
    parser.add_argument("--quick", action="store_true", help="fewer batch sizes, each measured once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")


def run(options: argparse.Namespace) -> int:
    try:
        if options.json is not None and not options.json.parent.is_dir():
            raise SettingsError(f"--json: there is no folder {options.json.parent}")
        report = _measure(options)
        print("\n".join(lines(report)))
        if options.json is not None:
            options.json.write_text(json.dumps(report.to_dict(), indent=2) + "\n")
    except ModuleNotFoundError as error:
        print(f"tailrace: this needs {error.name}: pip install 'tailrace[torch]'", file=sys.stderr)
        return 2
    except (SettingsError, ValueError, OSError) as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    return 0


def _measure(options: argparse.Namespace) -> BenchReport:
    from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT

    os.environ.update(OPENMP_PASSIVE_WAIT)  # as in a worker; must be set before torch is loaded
    from tailrace.commands.bench.measure import bench
    from tailrace.runtime.inputs.sources import check_device

    check_device(options.device)
    return bench(
        options.model,
        device=options.device,
        is_quick=options.quick,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )


def lines(report: BenchReport) -> list[str]:
    setting, speed = report.setting, report.speed
    driver = f", driver {setting['driver']}" if setting["driver"] else ""
    return [
        f"tailrace {setting['tailrace']}, torch {setting['torch']}, transformers {setting['transformers']}, python"
        f" {setting['python']}; {setting['device']}{driver}, {setting['threads']} threads",
        f"{setting['model']}, {setting['parameters'] / 1e6:,.1f}M parameters, {setting['dtype']}",
        f"memory {speed.bytes_per_s / 1e9:,.1f} GB/s, matrix products {speed.flops / 1e12:,.2f} TFLOP/s",
        f"{'':<20}{'measured':>12} {'machine allows':>16} {'share':>8}",
        *(_row(figure) for figure in report.figures),
        *report.notes,
    ]


def _row(figure: Figure) -> str:
    numbers = f"{figure.measured:>12,.0f} {figure.allowed:>16,.0f}"
    if figure.unit == "s":
        numbers = f"{figure.measured:>12.4f} {figure.allowed:>16.4f}"
    return f"{figure.name:<20}{numbers} {figure.share:>8.1%}  {figure.unit}"
