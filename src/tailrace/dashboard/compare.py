"""``compare.html``: one timeline per schedule under one time axis, and the table of figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bokeh.embed import json_item
from markupsafe import Markup

from tailrace.dashboard import charts, page
from tailrace.observe import schedule_table
from tailrace.observe.comparison import Compared


def write_comparison(results: Sequence[Compared], path: Path) -> Path:
    window = 0.0, max(result.account.now - result.account.began for result in results)
    drawings = {
        f"timeline-{number}": charts.timeline(result.account.timeline.lanes(), title=result.schedule, window=window)
        for number, result in enumerate(results)
    }
    text = page.template("compare.html").render(
        charts=drawings,
        rows=schedule_table.cells({result.schedule: result.figures for result in results}),
        chart_json=page.embed([json_item(chart.figure, f"plot-{name}") for name, chart in drawings.items()]),
        bokeh=Markup(page.bokeh_script()),
        css=Markup(page.asset("page.css")),
        script=Markup(page.asset("draw.js")),
    )
    path.write_text(text, encoding="utf-8")
    return path
