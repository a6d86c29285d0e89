"""Run schedules one after another on the same prompts and seeds: `tailrace compare RECIPE --schedules a,b,c`.

A schedule is a preset, or a preset with a bound of its own: `staleflow@3` has `max_staleness = 3`. Each is a run of its
own in `output_dir`/NAME. The same command continues an interrupted comparison: it shows finished runs and goes on with
the others. Exit status: 0 every run is complete, 1 a run failed or was stopped, 2 the comparison could not start.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tailrace.cli import recipe
from tailrace.config import presets
from tailrace.config.load import SettingsError, load, print_hint
from tailrace.config.settings import Settings
from tailrace.observe.journal import journal_file
from tailrace.observe.schedules import schedule_table
from tailrace.observe.schedules.comparison import Compared, table

Runs = Mapping[str, Settings]


def configure(parser: argparse.ArgumentParser) -> None:
    recipe.add_arguments(parser)
    names = "presets, or PRESET@MAX_STALENESS; the first is the measure of speed"
    parser.add_argument("--schedules", metavar="A,B,C", required=True, help=names)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")


def run(options: argparse.Namespace) -> int:
    return recipe.begin(options, lambda: _load(options), lambda runs: _compare(runs, options), _check)


def _load(options: argparse.Namespace) -> Runs:
    """The settings of every run. A schedule that cannot work is refused before the first run starts."""
    if options.json is not None and (options.json.is_dir() or not options.json.parent.is_dir()):
        raise SettingsError(f"--json: {options.json} is no place for a file")
    first, *others = _names(options.schedules)
    found = {first: _settings(options, first)}
    return found | {name: _settings(options, name, hint=lambda line: None) for name in others}


def _names(given: str) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--schedules names '{name}' twice")
        try:
            presets.check_trains(name.partition("@")[0])
        except ValueError as error:
            raise SettingsError(f"--schedules: {error}") from None
    return names


def _settings(options: argparse.Namespace, name: str, *, hint: Callable[[str], None] = print_hint) -> Settings:
    given = recipe.overrides(options)
    folder = load(options.recipe, given, hint=hint).output_dir
    preset, has_bound, bound = name.partition("@")
    given |= {"schedule.preset": preset, "output_dir": str(folder / name)}
    return load(
        options.recipe, given | ({"schedule.max_staleness": bound} if has_bound else {}), hint=lambda line: None
    )


def _check(runs: Runs, say: recipe.Say) -> Runs:
    from tailrace.commands.preflight.dry_run import dry_run

    checked = {}
    for name, settings in runs.items():
        say(f"== {name}")
        checked[name] = dry_run(settings, say)
    return checked


def _compare(runs: Runs, options: argparse.Namespace) -> int:
    # Heavy imports wait until the settings are known to be good.
    from tailrace.commands.train import train
    from tailrace.runtime.inputs.sources import Sources

    sources = Sources.load(next(iter(runs.values())))
    for settings in runs.values():
        sources.check_schedule(settings)
    results: list[Compared] = []
    for name, settings in runs.items():
        try:
            print(f"== {name}", flush=True)
            result = train(settings)
        except KeyboardInterrupt:
            print(f"tailrace: stopped while {name} was starting; the same command goes on there", file=sys.stderr)
            return 1
        if not result.is_complete:
            return result.exit_code
        entries = [entry for _, entry in journal_file.read(result.directory / "journal.jsonl")]
        results.append(Compared.of(name, entries))
    print("\n".join(schedule_table.lines(table(results))), flush=True)
    if options.json is not None:
        rows = [result.to_dict(results[0]) for result in results]
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    _page(results, runs, options.recipe)
    return 0


def _page(results: Sequence[Compared], runs: Runs, recipe_name: str) -> None:
    path = runs[results[0].schedule].output_dir.parent / "compare.html"

    def write() -> Path:
        from tailrace.dashboard.compare import write_comparison

        return write_comparison(results, runs, path, recipe=recipe_name)

    recipe.write_page(write, label="report: ")
