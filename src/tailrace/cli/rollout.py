"""Generate and score without training: `tailrace rollout RECIPE [--num-prompts N] [--section.key value ...]`.

The run directory (default: that of the recipe, with `-rollout` appended) then holds `lengths.json` and the responses,
which `tailrace train ... --rollout.from_run` can use. The exit status is that of `tailrace train`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tailrace.cli import recipe
from tailrace.config.load import load
from tailrace.config.presets import ROLLOUT_ONLY
from tailrace.config.settings import Settings

if TYPE_CHECKING:
    from tailrace.commands.train import RunResult

_WITHOUT_TRAINING = {"schedule.preset": ROLLOUT_ONLY, "eval": "[]", "eval_interval": "null"}


def configure(parser: argparse.ArgumentParser) -> None:
    recipe.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    return recipe.carry_out(options, lambda: _load(options), _rollout, _check)


def _load(options: argparse.Namespace) -> Settings:
    given = recipe.overrides(options)
    settings = load(options.recipe, given | _WITHOUT_TRAINING)
    if "output_dir" in given:
        return settings
    # The recipe's own directory is for training with it.
    folder = settings.output_dir
    return settings.model_copy(update={"output_dir": folder.with_name(f"{folder.name}-rollout")})


def _check(settings: Settings, say: recipe.Say) -> Settings:
    from tailrace.commands.preflight.dry_run import dry_run

    return dry_run(settings, say)


def _rollout(settings: Settings) -> RunResult:
    # Heavy imports wait until the settings are known to be good.
    from tailrace.commands.rollout import rollout

    return rollout(settings)
