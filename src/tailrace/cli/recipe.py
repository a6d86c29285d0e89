"""Shared by the verbs that run a recipe: their arguments, their exit status, and the report at the end.

Exit status: 0 the run is complete, 1 it failed or was stopped (the same command continues it), 2 it could not start.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic_core import to_json

from tailrace.cli.settings_help import has_colours, settings_help, terminal_width
from tailrace.config.aliases import ALIASES
from tailrace.config.declared import leaves
from tailrace.config.load import SettingsError
from tailrace.config.names import full_name, short_names
from tailrace.config.settings import Settings
from tailrace.observe.guarded import Guarded, raise_in_tests

if TYPE_CHECKING:
    from tailrace.commands.train import RunResult

Say = Callable[[str], None]
Loaded = TypeVar("Loaded", Settings, Mapping[str, Settings])

_RECIPE = (
    "a TOML or YAML file, or a built-in recipe: quickstart[-ppo|-dapo|-gspo|-cispo], long-tail, qwen-{gpu,8gpu,64gpu}"
)


def add_arguments(parser: argparse.ArgumentParser, *, or_else: str = "") -> None:
    """Add the recipe and all settings. ``or_else``: what the verb accepts besides a recipe, for its help."""
    parser.add_argument("recipe", help=_RECIPE + or_else)
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, and stop")
    parser.add_argument(
        "--show-settings",
        action="store_true",
        help="with --dry-run: print every setting as JSON on stdout, and the plan on stderr",
    )
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="show this message with every setting, and exit")
    _explain_settings(parser, shows_all=False)
    parser.set_defaults(takes_settings=True)
    settings = parser.add_argument_group()
    for name in [*(name for name, _ in leaves(Settings)), *_other_names()]:
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        settings.add_argument(*spellings, dest=name, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        _explain_settings(parser, shows_all=True)
        parser.print_help()
        parser.exit()


def _explain_settings(parser: argparse.ArgumentParser, *, shows_all: bool) -> None:
    """Let the help end with the settings. They keep their own lines, so the other text is wrapped here."""
    width = terminal_width()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = textwrap.fill(parser.description or "", width)
    parser.epilog = settings_help(shows_all=shows_all, width=width, has_colours=has_colours())


def overrides(options: argparse.Namespace) -> dict[str, str]:
    """The settings given on the command line."""
    given: dict[str, str] = {}
    for name in [*(name for name, _ in leaves(Settings)), *_other_names()]:
        if name not in vars(options):
            continue
        if (full := full_name(name)) in given:
            raise SettingsError(f"{full} and {name} both set {full}; give it once")
        given[full] = vars(options)[name]
    return given


def _other_names() -> list[str]:
    """Names of settings without their section, and names from other systems."""
    return list(dict.fromkeys((*short_names(), *ALIASES)))


def carry_out(
    options: argparse.Namespace,
    load: Callable[[], Settings],
    run: Callable[[Settings], RunResult],
    check: Callable[[Settings, Say], Settings],
) -> int:
    def run_and_report(settings: Settings) -> int:
        result = run(settings)
        if settings.report:
            _report(result.directory)
        return result.exit_code

    return begin(options, load, run_and_report, check)


def begin(
    options: argparse.Namespace,
    load: Callable[[], Loaded],
    run: Callable[[Loaded], int],
    check: Callable[[Loaded, Say], Loaded] | None = None,
) -> int:
    """Load the settings, run, and return the exit status. Wrong settings and missing packages are printed.

    ``check``: what a dry run checks and says. It returns the settings in full. Without it, a dry run prints them.
    """
    try:
        if options.show_settings and not options.dry_run:
            raise SettingsError("--show-settings goes with --dry-run: give that too")
        settings = load()
        if options.dry_run:
            _rehearse(settings, check, shows_settings=options.show_settings)
            return 0
        return run(settings)
    except SettingsError as error:
        print(f"tailrace: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "safetensors", "tokenizers"):
            raise
        print(f"tailrace: this needs {error.name}: pip install 'tailrace[torch]'", file=sys.stderr)
    return 2


def _rehearse(settings: Loaded, check: Callable[[Loaded, Say], Loaded] | None, *, shows_settings: bool) -> None:
    """The plan goes to stdout, unless the settings do: programs may read these."""
    if check is not None:
        place = sys.stderr if shows_settings else sys.stdout
        settings = check(settings, lambda line: print(line, file=place, flush=True))
    if check is None or shows_settings:
        print(to_json(settings, indent=2).decode())


def _report(run: Path) -> None:
    """Write ``report.html`` if its package is installed."""

    def write() -> Path:
        from tailrace.dashboard.report import write_report

        return write_report(run)

    write_page(write, label="report:     ", later=f", then `tailrace report {run}`")


def write_page(write: Callable[[], Path], *, label: str, later: str = "") -> None:
    """Write a page and print its path. One that cannot be written does not fail the run.

    ``later``: what to do once its packages are installed.
    """

    def complain(part: str, error: Exception) -> None:
        if isinstance(error, ModuleNotFoundError):
            print(f"{label}needs {error.name}: pip install 'tailrace[report]'{later}")
            return
        if not isinstance(error, OSError | ValueError):
            raise_in_tests(error)
        print(f"{label}could not be written: {error}")

    Guarded("report", lambda: print(f"{label}{write()}", flush=True), complain)
