"""Schedules side by side: one row each, with its speed-up over the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailrace.observe.schedules.schedule_account import ScheduleFigures

Column = tuple[str, Callable[[ScheduleFigures], str]]

_COLUMNS: tuple[Column, ...] = (
    ("s/step", lambda f: f"{f.seconds_per_step:.1f}"),
    ("wall s", lambda f: f"{f.wall_s:.0f}"),
    ("generated", lambda f: _tokens(f.tokens_generated)),
    ("trained", lambda f: _tokens(f.tokens_trained)),
    ("wasted", lambda f: f"{f.tokens_wasted / max(f.tokens_generated, 1):.1%}"),
    ("bubble", lambda f: f"{f.bubble_share:.1%}"),
    ("tok/s", lambda f: f"{f.rollout_tokens_per_s:.0f}"),
    ("stale mean/max/viol", lambda f: f"{f.staleness_mean:.2f}/{f.staleness_max}/{f.staleness_violations}"),
    ("rounds short/long", lambda f: f"{f.rounds_short}/{f.rounds_long}"),
    ("versions max", lambda f: f"{f.versions_max}"),
    ("carried", lambda f: f"{f.carried_share:.1%}"),
)


def cells(schedules: Mapping[str, ScheduleFigures]) -> list[list[str]]:
    """A row of headings, then one row per schedule."""
    first = next(iter(schedules.values())).seconds_per_step
    rows = [["schedule", "speed-up", *(name for name, _ in _COLUMNS)]]
    for name, figures in schedules.items():
        speed_up = first / figures.seconds_per_step if figures.seconds_per_step else float("nan")
        rows.append([name, f"{speed_up:.2f}x", *(show(figures) for _, show in _COLUMNS)])
    return rows


def lines(rows: list[list[str]]) -> list[str]:
    """The rows as text, in columns."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _tokens(count: int) -> str:
    return f"{count / 1e6:.2f}M" if count >= 1e6 else f"{count / 1e3:.1f}k"
