"""``report.html``: one file that shows a whole run, light or dark, and loads nothing from anywhere.

Every number on the page comes from ``tailrace.observe``; this file only chooses, words and places them. The page is
made from the journal, the config and what the payload store still holds, so it works on a finished run, on one that
goes on and on one that was cut off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files as package_files
from typing import Any

from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, Template
from markupsafe import Markup

from tailrace.dashboard import charts, reward_charts, reward_tables, tables
from tailrace.dashboard.figures import Chart
from tailrace.dashboard.round_tables import round_tables, rounds_heading
from tailrace.dashboard.samples import ShownSample
from tailrace.dashboard.what_if import what_if
from tailrace.observe.account import Account
from tailrace.observe.journal.recollection import Recollection
from tailrace.observe.metrics.natural_lengths import WINDOW_STEPS
from tailrace.observe.prompts.fairness import compare_lengths
from tailrace.observe.quantities import quantity
from tailrace.observe.schedules.advice import Advice

SECTIONS = (
    ("learning", "Learning"),
    ("lengths", "Lengths"),
    ("timeline", "Timeline"),
    ("phases", "Phases"),
    ("rounds", "Rounds"),
    ("scoring", "Rewards"),
    ("what-if", "What if"),
    ("fates", "Prompts"),
    ("samples", "Responses"),
    ("config", "Settings"),
)
_NO_SAMPLES = (
    "The payload store holds no whole response of a trained step any more: payload is deleted once a checkpoint covers"
    " it. keep_rollouts = true keeps it."
)


def render(
    name: str,
    account: Account,
    *,
    is_alive: bool,
    stop_note: str,
    samples: list[ShownSample],
    config: dict[str, Any],
    memory: Recollection | None = None,
    changes: Sequence[Mapping[str, Any]] = (),
    advice: Advice | None = None,
) -> str:
    """The whole page as text. ``memory``: the core's state, where the limits of test cases are wanted. ``advice``:
    about the schedule, if somebody asked for it."""
    drawings = _drawings(account)
    fates, fates_note = tables.fate_rows(account)
    return template("page.html").render(
        name=name,
        status=tables.status(account, is_alive=is_alive, stop_note=stop_note),
        sections=SECTIONS,
        tiles=tables.tiles(account),
        charts=drawings,
        lengths_note=tables.lengths_note(account),
        length_rows=tables.length_rows(account),
        length_steps=quantity(min(len(account.fates.lengths), WINDOW_STEPS), "step"),
        kinds=tables.kinds(account),
        lanes=tables.lanes(account),
        phases=tables.phases(account),
        totals=tables.totals(account),
        rounds_heading=rounds_heading(account.steps),
        round_tables=round_tables(account.steps, account.parts.steps),
        weak_note=reward_tables.weak_note(account, config),
        reward_tables=reward_tables.tables(account, memory),
        what_if=what_if(advice),
        states=sorted({row[1] for row in fates}),
        fates_note=fates_note,
        samples=samples,
        no_samples=_NO_SAMPLES,
        config=json.dumps(config, indent=2),
        changes=tables.change_lines(changes),
        version=version("tailrace"),
        num_entries=f"{account.num_entries:,}",
        chart_json=embed([json_item(chart.figure, f"plot-{name}") for name, chart in drawings.items()]),
        fate_json=embed(fates),
        bokeh=Markup(bokeh_script()),
        css=Markup(asset("page.css")),
        script=Markup(asset("draw.js") + asset("page.js")),
    )


def _drawings(account: Account) -> dict[str, Chart]:
    window = account.began, account.now
    found = {"timeline": charts.timeline(account.timeline.lanes(), title="What everything did", window=window)}
    if account.steps:
        found["rewards"] = charts.rewards(account.steps)
        found["lengths"] = charts.lengths(account.fates.lengths, account.steps)
        if (compared := compare_lengths(account.fates)) is not None:
            found["longer"] = charts.longer(compared)
        found["phases"] = charts.phases(account.steps, account.parts.steps)
        found |= reward_charts.drawings(account.steps)
    if account.evaluations:
        found["evaluations"] = charts.evaluations(account.evaluations)
    return found


def bokeh_script() -> str:
    """The library that draws the charts, minified: its core alone, without widgets, tables and formulas."""
    script: str = Resources(mode="inline", components=["bokeh"]).js_raw[0]
    return script


def template(name: str) -> Template:
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.globals["even_columns"] = even_columns
    return environment.from_string(asset("drawing.html") + asset(name))


def even_columns(count: int, most: int) -> int:
    """Columns of a grid of ``count`` tiles, at most ``most``: so many that the last row is as full as it can be."""
    if count <= most:
        return max(count, 1)
    return min(range(most, most // 2, -1), key=lambda columns: -count % columns)


def asset(name: str) -> str:
    return (package_files("tailrace") / "dashboard" / name).read_text(encoding="utf-8")


def embed(data: Any) -> Markup:
    """JSON inside a script element, where only `<` could end it early."""
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
