"""Charts of the rewards: the load of each part of the scores, and the verdicts of programs, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from bokeh.models import ColumnDataSource

from tailrace.core.outcomes import Part
from tailrace.dashboard.charts import LINES, line_style, step_range, thinned, values_of
from tailrace.dashboard.figures import Chart, Mark, explain, over_steps, roomy
from tailrace.dashboard.reward_tables import verdict_names
from tailrace.observe.metrics.rows import Row
from tailrace.observe.time_use.timeline import PART_LANES


def drawings(steps: Sequence[Row]) -> dict[str, Chart]:
    """The charts that say something about this run."""
    loads = {f"scoring/{part.value}/load": PART_LANES[part] for part in Part}
    shares = {"loads": ("Load of the parts of scores", loads), "verdicts": ("Verdicts", verdict_names(steps))}
    found = {name: _shares(title, names, steps) for name, (title, names) in shares.items()}
    return {name: chart for name, chart in found.items() if chart is not None}


def _shares(title: str, names: Mapping[str, str], steps: Sequence[Row]) -> Chart | None:
    """A line for each of these metrics that is not always 0; None if there is none. ``names``: words by metric."""
    names = {name: words for name, words in names.items() if any(row.get(name) for row in steps)}
    if not names:
        return None
    figure = over_steps(step_range(steps), roomy([0.0, 1.0]))
    key = [Mark(words=words, colour=colour) for words, colour in zip(names.values(), cycle(LINES), strict=False)]
    # A step in which none of these responses was scored has no such metric.
    shown = thinned([dict.fromkeys(names, 0.0) | row for row in steps])
    columns = {name: values_of(shown, name) for name in names}
    data = ColumnDataSource({"step": values_of(shown, "step"), **columns})
    lines = [
        figure.line("step", name, source=data, color=mark.colour, **line_style(len(steps)))
        for name, mark in zip(names, key, strict=True)
    ]
    if len(shown) == 1:
        for name, mark in zip(names, key, strict=True):
            figure.scatter("step", name, source=data, color=mark.colour, size=8)
    tips = [("step", "@step"), *((words, f"@{{{name}}}{{0.0%}}") for name, words in names.items())]
    explain(figure, lines[0], tips, mode="vline")
    return Chart(title=title, key=tuple(key), figure=figure)
