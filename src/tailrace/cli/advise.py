"""Predict other schedules on the work of a run, and say which one to use: `tailrace advise RUN [--json FILE]`.

The presets, and a few values of their knobs, are simulated with the lengths and costs of the run's journal. Lengths
that the run did not see to their end are drawn several times. The result also goes to `advice.json` in the run
directory, where `tailrace report` finds it.

Exit status: 0 done, 2 there is no such run, or too little of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tailrace.core.journal import Entry
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.schedules import advice as advice_file
from tailrace.observe.schedules import schedule_table
from tailrace.observe.schedules.advice import Advice


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run directory")
    also = "another run with the same model and settings on the same machine, to measure costs with as well"
    parser.add_argument("--with", type=Path, dest="others", metavar="RUN", action="append", default=[], help=also)
    parser.add_argument(
        "--steps", type=int, metavar="N", help="simulate at most the first N optimizer steps of the run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")


def run(options: argparse.Namespace) -> int:
    try:
        _check(options)
        advice = _advise(options)
        files = [RunFiles.find(options.run).path / advice_file.FILE, *([options.json] if options.json else [])]
        print("\n".join(_lines(advice)), flush=True)
        for path in files:
            advice_file.write(advice, path)
    except ValueError as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tailrace: the advice cannot be written: {error}", file=sys.stderr)
        return 2
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.json is not None and (options.json.is_dir() or not options.json.absolute().parent.is_dir()):
        raise ValueError(f"--json: {options.json} is no place for a file")


def _advise(options: argparse.Namespace) -> Advice:
    from tailrace.engines.registry import refused
    from tailrace.sim.advice.advisor import make_advice
    from tailrace.sim.advice.evidence import LEAST_STEPS, Evidence  # needs numpy

    if options.steps is not None and options.steps < LEAST_STEPS:
        raise ValueError(
            f"--steps is {options.steps}; it takes at least {LEAST_STEPS} optimizer steps to predict anything"
        )
    runs = [_files(path) for path in (options.run, *options.others)]
    entries, *others = [_entries(files) for files in runs]
    _say(f"fitting costs to {len(runs)} run{'s' if len(runs) > 1 else ''}")
    evidence = Evidence.of(entries, runs[0].config(), others=others, num_steps=options.steps)
    if evidence.num_steps < evidence.num_recorded:
        _say(f"the run has {evidence.num_recorded} steps; the first {evidence.num_steps} are simulated (--steps)")
    return make_advice(evidence, _say, refused)


def _files(path: Path) -> RunFiles:
    if path.is_file():
        raise ValueError(f"{path} is a file; give the run directory, which also holds the settings of the run")
    files = RunFiles.find(path)
    if not files.config():
        raise ValueError(f"{path} has no config.json that can be read; it says what the simulator needs of the machine")
    return files


def _entries(files: RunFiles) -> list[Entry]:
    entries = [entry for _, entry in journal_file.read(files.journal)]
    if not entries:
        raise ValueError(f"{files.journal} holds no complete entry")
    return entries


def _say(line: str) -> None:
    print(f"{line} ...", file=sys.stderr, flush=True)


def _lines(advice: Advice) -> list[str]:
    return [
        advice_file.basis(advice),
        "",
        *schedule_table.lines(advice_file.cells(advice)),
        "",
        *(f"not possible here: {name}: {why}" for name, why in advice.excluded),
        *([""] if advice.excluded else []),
        *advice.sentences,
    ]
