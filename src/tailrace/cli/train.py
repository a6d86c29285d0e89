"""Train a model with a recipe: `tailrace train RECIPE [--section.key value ...]`.

With `--dry-run` nothing is trained or written. The plan of the run and the memory it will take are printed, and all
that can be is checked: settings, data, model, lengths, reward functions, run directory. With `--dry-run --card 8xH100`
the run is planned for GPUs that need not be here, without the model's files and the data.

Exit status: 0 the run is complete, 1 it failed or was stopped (the same command continues it), 2 it could not start.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tailrace.cli import recipe
from tailrace.config.load import SettingsError, load
from tailrace.config.settings import Settings

if TYPE_CHECKING:
    from tailrace.commands.train import RunResult


def configure(parser: argparse.ArgumentParser) -> None:
    recipe.add_arguments(parser)
    parser.add_argument(
        "--card",
        metavar="[Nx]CARD",
        help="with --dry-run: plan for these GPUs instead of this machine's: H100, 8xH200, 80GiB",
    )


def run(options: argparse.Namespace) -> int:
    def check(settings: Settings, say: recipe.Say) -> Settings:
        return _check(settings, options, say)

    return recipe.carry_out(options, lambda: _load(options), _train, check)


def _load(options: argparse.Namespace) -> Settings:
    if options.card is not None and not options.dry_run:
        raise SettingsError("--card is for planning: give --dry-run too")
    return load(options.recipe, recipe.overrides(options))


def _check(settings: Settings, options: argparse.Namespace, say: recipe.Say) -> Settings:
    from tailrace.commands.preflight.dry_run import dry_run, dry_run_on
    from tailrace.commands.train import check_trains
    from tailrace.sizing.card import parse_card

    check_trains(settings)
    if options.card is None:
        return dry_run(settings, say)
    try:
        card = parse_card(options.card)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return dry_run_on(card, settings, say)


def _train(settings: Settings) -> RunResult:
    # Heavy imports wait until the settings are known to be good.
    from tailrace.commands.train import train

    return train(settings)
