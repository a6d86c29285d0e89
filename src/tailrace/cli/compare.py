"""Run schedules one after another on the same prompts and seeds: `tailrace compare RECIPE --schedules a,b,c`.

A schedule is a preset, or a preset with a bound of its own: `staleflow@3` has `max_staleness = 3`. Each is a run of its
own in `output_dir`/NAME, so an interrupted comparison goes on where it was. Exit status: 0 every run is complete, 1 one
failed, 2 it could not begin.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tailrace.cli import recipe
from tailrace.config.load import SettingsError, load, refuse_unknown
from tailrace.config.settings import Settings
from tailrace.observe import journal_file, schedule_table
from tailrace.observe.comparison import Compared


def configure(parser: argparse.ArgumentParser) -> None:
    recipe.add_arguments(parser)
    names = "presets, or PRESET@MAX_STALENESS; the first is the measure of speed"
    parser.add_argument("--schedules", metavar="A,B,C", required=True, help=names)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    try:
        refuse_unknown(rest)
        runs = {name: _settings(options, name) for name in _names(options.schedules)}
        if options.json is not None and not options.json.parent.is_dir():
            raise SettingsError(f"--json: there is no folder {options.json.parent}")
        from tailrace.runtime.train import train  # heavy: waits until every schedule is known to be sound

        results: list[Compared] = []
        for name, settings in runs.items():
            print(f"== {name}", flush=True)
            if not (result := train(settings)).is_complete:
                return result.exit_code
            entries = [entry for _, entry in journal_file.read(result.directory / "journal.jsonl")]
            results.append(Compared.of(name, entries))
    except SettingsError as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    _show(results)
    if options.json is not None:
        rows = [result.to_dict(results[0]) for result in results]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    _page(results, next(iter(runs.values())).output_dir.parent / "compare.html")
    return 0


def _names(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--schedules names '{name}' twice")
    return names


def _settings(options: argparse.Namespace, name: str) -> Settings:
    given = recipe.overrides(options)
    folder = load(options.recipe, given).output_dir
    preset, has_bound, bound = name.partition("@")
    given |= {"schedule.preset": preset, "output_dir": str(folder / name)}
    return load(options.recipe, given | ({"schedule.max_staleness": bound} if has_bound else {}))


def _show(results: Sequence[Compared]) -> None:
    more: dict[str, dict[str, str]] = {"reward": {}}
    for result in results:
        begin, end = result.rewards
        more["reward"][result.schedule] = f"{begin:.3f} -> {end:.3f}"
        for name, (before, after) in result.accuracies().items():
            more.setdefault(name, {})[result.schedule] = f"{before:.3f} -> {after:.3f}"
    cells = schedule_table.cells({result.schedule: result.figures for result in results}, more)
    print("\n".join(schedule_table.lines(cells)), flush=True)


def _page(results: Sequence[Compared], path: Path) -> None:
    try:
        from tailrace.dashboard.compare import write_comparison

        print(f"report: {write_comparison(results, path)}", flush=True)
    except ModuleNotFoundError as error:
        print(f"report: needs {error.name}: pip install 'tailrace[report]'")
