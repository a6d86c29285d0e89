"""Train a model with a recipe: `tailrace train RECIPE [--section.key value ...]`.

With `--dry-run` nothing is run or written: settings, data and model are checked, every setting is printed, and on
stderr the plan of the run and the memory it will take.

Exit status: 0 the run is complete, 1 it failed or was stopped (the same command continues it), 2 it could not start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.cli import recipe
from tailrace.config.load import load
from tailrace.config.settings import Settings

if TYPE_CHECKING:
    from tailrace.runtime.train_command import Result


def configure(parser: argparse.ArgumentParser) -> None:
    recipe.add_arguments(parser)


def run(options: argparse.Namespace, rest: Sequence[str]) -> int:
    return recipe.carry_out(options, rest, lambda: load(options.recipe, recipe.overrides(options)), _train, _check)


def _check(settings: Settings) -> Settings:
    from tailrace.runtime.dry_run import dry_run

    return dry_run(settings, say=lambda line: print(line, file=sys.stderr))


def _train(settings: Settings) -> Result:
    # Heavy imports wait until the settings are known to be good.
    from tailrace.runtime.train_command import train

    return train(settings)
