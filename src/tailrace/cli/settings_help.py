"""The help about settings: what ``--help`` and ``--help-all`` print, made from the declarations of the settings."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import Any

from tailrace.config.declared import DeclaredSection, DeclaredSetting, sections
from tailrace.config.settings import Settings

_WIDEST = 120
_INDENT = " " * 6
_GLUE = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line may end."""
_BOLD, _CYAN, _PLAIN = "\033[1m", "\033[36m", "\033[0m"
_HOW_TO = (
    "Each replaces the recipe's value. Values are written as YAML: 0.5, true, null, [a, b]. The section may be left out"
    " if only one has such a setting: --learning_rate 1e-5. In a recipe, [[...]] begins a table, one for each entry."
)


def terminal_width() -> int:
    return min(shutil.get_terminal_size().columns - 2, _WIDEST)


def has_colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@cache
def settings_help(*, shows_all: bool, width: int, has_colours: bool = False) -> str:
    page = _Page(width=width, has_colours=has_colours)
    declared = list(sections(Settings()))
    hidden = sum(not setting.is_common for section in declared for setting in section.settings)
    more = "" if shows_all else f" {hidden} more are rarely needed: --help-all shows them too."
    parts = [page.titled("settings", _HOW_TO + more)]
    for section in declared:
        shown = [setting for setting in section.settings if shows_all or setting.is_common]
        if shown:
            parts.append(page.titled(_title(section), section.text))
            parts += [page.explained(setting, "" if section.is_table else "--") for setting in shown]
    return "\n".join(parts) + "\n"


def _title(section: DeclaredSection) -> str:
    return section.name or "no section"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    width: int
    has_colours: bool

    def titled(self, title: str, text: str) -> str:
        first, *others = textwrap.wrap(f"{title}: {text}", self.width, break_on_hyphens=False)
        return "\n".join(["", self._coloured(first, title, _BOLD), *others])

    def explained(self, setting: DeclaredSetting, dashes: str) -> str:
        name = f"{dashes}{setting.name}"
        first, *others = _invocation(name, setting.values, self.width)
        text = f"{setting.text} {_default(setting).replace(' ', _GLUE)}"
        lines = textwrap.wrap(text, self.width - len(_INDENT), break_on_hyphens=False)
        explanation = [_INDENT + line.replace(_GLUE, " ") for line in lines]
        return "\n".join([self._coloured(first, name, _CYAN), *others, *explanation])

    def _coloured(self, line: str, part: str, colour: str) -> str:
        return line.replace(part, f"{colour}{part}{_PLAIN}", 1) if self.has_colours else line


def _invocation(name: str, values: tuple[str, ...], width: int) -> list[str]:
    """Return the setting with its possible values; a list of choices that is too long goes on in the next line."""
    lines = [f"  {name} "]
    for index, value in enumerate(values):
        piece = f"|{value}" if index else value
        if len(lines[-1] + piece) > width:
            lines.append(" " * 10)
        lines[-1] += piece
    return lines


def _default(setting: DeclaredSetting) -> str:
    if setting.is_required:
        return "(required)"
    if setting.default is None or "efault: " in setting.text:  # the text says it better
        return ""
    return f"(default: {_written(setting.default)})"


def _written(value: Any) -> str:
    """Return the value as YAML and JSON both read it."""
    return value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
