"""Measure an engine and fit its cost model: `tailrace profile RECIPE_OR_MODEL [--json FILE] [--section.key value ...]`.

With `--parallel-sizes 1,2,4`, or a recipe that has `rollout.parallel_sizes`, it measures an instance of each size, and
what a change of the size takes; `rollout.parallel_profile` reads the file that `--json` writes then. With `--judge` it
measures the judge instead: memory and seconds of its passes, by length; `reward.judge.profile` reads the file.

Exit status: 0 measured, 2 it could not start, or the engine has room for too few load points.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.cli import recipe
from tailrace.config.load import SettingsError, load
from tailrace.config.settings import Settings
from tailrace.data.models import built_in_models

if TYPE_CHECKING:
    from tailrace.commands.profile import Profiled

_SIZES = "rollout.parallel_sizes"
_RECIPE_ENDINGS = (".toml", ".yaml", ".yml")


def configure(parser: argparse.ArgumentParser) -> None:
    recipe.add_arguments(parser, or_else="; or a model: a directory, a Hugging Face id, tiny-arith")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="visits to each load point (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there as well")
    parser.add_argument(
        "--judge",
        action="store_true",
        help="measure the judge: reward.judge.model of the recipe, or the model given; --json writes the file that"
        " reward.judge.profile reads",
    )
    parser.add_argument(
        "--lengths", metavar="N,N,...", help="with --judge: tokens of its texts (default: 1024,4096,16384,32768)"
    )


def run(options: argparse.Namespace) -> int:
    return recipe.begin(options, lambda: _load(options), lambda settings: _measure(settings, options))


def _measure(settings: Settings, options: argparse.Namespace) -> int:
    if options.judge:
        return _profile_judge(settings, options)
    return (_profile_sizes if settings.rollout.parallel_sizes else _profile)(settings, options)


def _load(options: argparse.Namespace) -> Settings:
    if options.repeats < 1:
        raise SettingsError(f"--repeats must be at least 1, got {options.repeats}")
    if options.json is not None and not options.json.parent.is_dir():
        raise SettingsError(f"--json: there is no folder {options.json.parent}")
    _lengths(options)
    given = recipe.overrides(options)
    if options.judge and _SIZES in given:
        raise SettingsError(f"--judge measures the judge, and --{_SIZES} the engine; give one of them")
    if not _is_model(options.recipe):
        return load(options.recipe, given)
    name = "reward.judge.model" if options.judge else "model.path"
    if name in given:
        raise SettingsError(f"{options.recipe} and --{name} both name a model; give one of them")
    return load(None, _for_sizes(given) | {name: json.dumps(options.recipe)})


def _for_sizes(given: dict[str, str]) -> dict[str, str]:
    """The settings of a model alone. With parallel sizes a run would start with the smallest, on as many devices as the
    largest has."""
    sizes = _numbers(given.get(_SIZES, ""))
    if not sizes:
        return given
    first, most = min(sizes), max(sizes)
    return {"rollout.tensor_parallel_size": str(first), "rollout.num_instances": str(most // first)} | given


def _lengths(options: argparse.Namespace) -> list[int] | None:
    if options.lengths is None:
        return None
    if not options.judge:
        raise SettingsError("--lengths goes with --judge")
    if not (lengths := _numbers(options.lengths)):
        raise SettingsError(f"--lengths must be numbers above 0 with commas between them, got {options.lengths!r}")
    return lengths


def _numbers(given: str) -> list[int]:
    """The numbers of a text such as `1,2,4` or `[1, 2, 4]`; none if it is something else."""
    parts = [part.strip() for part in given.strip("[]").split(",")]
    return sorted({int(part) for part in parts}) if all(part.isdecimal() and int(part) for part in parts) else []


def _is_model(name: str) -> bool:
    """Whether the argument names a model: a built-in one, a directory, or `owner/name` if there is no such file."""
    is_file = name.endswith(_RECIPE_ENDINGS) or os.path.isfile(name)
    return name in built_in_models() or os.path.isdir(name) or ("/" in name and not is_file)


def _profile(settings: Settings, options: argparse.Namespace) -> int:
    # Heavy imports wait until the settings are known to be good.
    from tailrace.commands.profile import profile

    found = profile(settings, repeats=options.repeats, say=lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(_lines(found)))
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(found.to_dict(), indent=2) + "\n")
        except OSError as error:
            raise SettingsError(f"the result cannot be written: {error}") from None
    return 0


def _profile_sizes(settings: Settings, options: argparse.Namespace) -> int:
    from tailrace.commands.size_profile import profile_sizes
    from tailrace.config.parallel_profile import write_profile

    found = profile_sizes(settings, repeats=options.repeats, say=lambda line: print(line, file=sys.stderr, flush=True))
    print("\n".join(found.lines()))
    if options.json is not None:
        try:
            write_profile(options.json, found.profile)
        except OSError as error:
            raise SettingsError(f"the result cannot be written: {error}") from None
    return 0


def _profile_judge(settings: Settings, options: argparse.Namespace) -> int:
    from tailrace.commands.judge_profile import profile_judge
    from tailrace.sizing.offload_profile_file import write_profile

    found = profile_judge(settings, lengths=_lengths(options))
    print("\n".join(found.lines()))
    if options.json is not None:
        try:
            write_profile(options.json, found.profile, found.measured)
        except OSError as error:
            raise SettingsError(f"the result cannot be written: {error}") from None
    return 0


def _lines(found: Profiled) -> list[str]:
    setting, profile, model = found.setting, found.profile, found.profile.model
    rows = [
        f"{m.point.num_running:>7} {m.point.length:>6} {m.throughput:>12,.0f} {profile.predicted(m):>10,.0f}"
        f" {profile.predicted(m) / m.throughput - 1:>+8.1%}"
        for m in sorted(profile.held_out, key=lambda m: m.point)
    ]
    return [
        f"{setting['model']}, {setting['dtype']}, on {setting['device']}, threads: {setting['threads']}",
        f"{len(profile.fitted)} load points fitted, {len(rows)} held out; {setting['repeats']} visits of"
        f" {setting['steps_per_visit']} steps each, {setting['clock']} time",
        "held out:",
        "running length tokens/s: real  predicted    error",
        *rows,
        f"k1 {model.k1:.3e} s per step and token of the KV cache",
        f"k2 {model.k2:.3e} s per step, at least",
        f"k3 {model.k3:.3e} s per step and running response",
        f"k4 {model.k4:.3e} s per step",
        f"k5 {model.k5:.2f} tokens of the KV cache per token held",
        f"prefill {model.prefill_s:.3e} s per token",
        f"mean error {profile.error:.1%} on the points held out, {profile.fitted_error:.1%} on those fitted",
        *_notes(setting),
    ]


def _notes(setting: dict[str, Any]) -> list[str]:
    load, cores = max(setting["load_average"]), setting["cores"]
    if load <= cores or setting["clock"] == "processor":
        return []
    return [
        f"note: the load average was {load:.1f} on {cores} cores; measure again when the machine has nothing else to do"
    ]
