"""The charts of the report, made with bokeh. Each takes numbers that are already counted and returns one figure.

Colours of text, axes and grids are left to the page, which knows whether it is shown light or dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, Legend, LegendItem, LinearColorMapper
from bokeh.plotting import figure

from tailrace.dashboard.thinning import buckets, drawn
from tailrace.observe.fates import StepLengths
from tailrace.observe.metrics import Row
from tailrace.observe.timeline import Lane

MAX_POINTS, MAX_BARS, MAX_SPANS, LENGTH_BINS = 1000, 120, 800, 40

SPAN_COLOURS = {
    "generating": "#2a9d8f",
    "training": "#4c78c8",
    "scoring": "#8a6fc0",
    "publishing": "#c9a227",
    "loading weights": "#dcbf4a",
    "saving": "#b0649b",
    "starting": "#8a94a6",
    "ending": "#6b7280",
    "down": "#3f4652",
    "idle": "#f0907a",
}
PHASES = {
    "gen": ("generate", "#2a9d8f"),
    "reward": ("wait for rewards", "#8a6fc0"),
    "update_actor": ("train", "#4c78c8"),
    "update_weights": ("move weights", "#c9a227"),
    "save": ("save", "#b0649b"),
}
"""Metric `timing_s/NAME` to its words and colour."""
OTHER = ("other", "#8a94a6")
_LINES = ("#2a9d8f", "#d1603d", "#4c78c8", "#c9a227", "#8a6fc0", "#b0649b", "#5a9e4b", "#8a94a6")
_LENGTH_PALETTE = tuple(f"#2a9d8f{alpha:02x}" for alpha in (0, *range(48, 256, 16)))


def _figure(title: str, x: str, y: str, *, height: int = 260, is_zoomable: bool = False, **options: object) -> figure:
    chart = figure(
        height=height,
        sizing_mode="stretch_width",
        # A toolbar is slow to draw: only where there is something to look for.
        tools="xpan,xwheel_zoom,box_zoom,reset" if is_zoomable else "",
        toolbar_location="right" if is_zoomable else None,
        x_axis_label=x,
        y_axis_label=y,
        title=title,
        **options,
    )
    chart.toolbar.logo = None
    chart.toolbar.active_scroll = None  # the wheel scrolls the page
    chart.min_border_right = 16
    return chart


def _legend_above(chart: figure, names: Mapping[str, Sequence[Any]]) -> None:
    """Outside the plot, where it hides nothing."""
    items = [LegendItem(label=name, renderers=list(renderers)) for name, renderers in names.items()]
    chart.add_layout(Legend(items=items, orientation="horizontal", location="left", margin=0), "above")


def _thin(rows: Sequence[Row]) -> list[Row]:
    """The last row of each bucket: real rows, and always the newest."""
    return [rows[part[-1]] for part in buckets(len(rows), MAX_POINTS)]


def rewards(steps: Sequence[Row]) -> figure:
    rows = _thin(steps)
    chart = _figure("Reward", "step", "reward of a response")
    mean = np.array([row["reward/mean"] for row in rows])
    std = np.array([row["reward/std"] for row in rows])
    source = ColumnDataSource(
        {"step": [row["step"] for row in rows], "mean": mean, "low": mean - std, "high": mean + std}
    )
    band = chart.varea("step", "low", "high", source=source, fill_color=_LINES[0], fill_alpha=0.15)
    line = chart.line("step", "mean", source=source, color=_LINES[0], line_width=2)
    if len(rows) == 1:
        chart.scatter("step", "mean", source=source, color=_LINES[0], size=7)
    chart.add_tools(
        HoverTool(renderers=[line], tooltips=[("step", "@step"), ("mean", "@mean{0.000}")], mode="vline", visible=False)
    )
    _legend_above(chart, {"mean": [line], "+- 1 std": [band]})
    return chart


def evaluations(rows: Sequence[Row]) -> figure:
    chart = _figure("Evaluation", "step", "score")
    names = sorted({name for row in rows for name in row if "@" in name})
    averages = [name for name in names if "/avg@" in name]
    # avg@1 and pass@1 are the same number: one line is enough.
    shown = averages + [name for name in names if "/pass@" in name and not name.endswith("@1")]
    drawn_as: dict[str, list[Any]] = {}
    for number, name in enumerate(shown):
        mine = _thin([row for row in rows if name in row])
        label, colour = name.removeprefix("eval/"), _LINES[number % len(_LINES)]
        source = ColumnDataSource(
            {
                "set": [label] * len(mine),
                "step": [row["step"] for row in mine],
                "score": [row[name] for row in mine],
            }
        )
        dash = "solid" if "/avg@" in name else "dashed"
        line = chart.line("step", "score", source=source, color=colour, line_width=2, line_dash=dash)
        dots = chart.scatter("step", "score", source=source, color=colour, size=7)
        drawn_as[label] = [line, dots]
    tips = [("set", "@set"), ("step", "@step"), ("score", "@score{0.000}")]
    dots_of_all = [dots for _, dots in drawn_as.values()]
    chart.add_tools(HoverTool(renderers=dots_of_all, tooltips=tips, visible=False))
    _legend_above(chart, drawn_as)
    return chart


def lengths(steps: Sequence[StepLengths], rows: Sequence[Row]) -> figure:
    """How often each length was generated, step by step, under the percentiles."""
    parts = buckets(len(steps), MAX_BARS)
    longest = max((length for step in steps for length in step.generated), default=1)
    counts = np.zeros((LENGTH_BINS, len(parts)))
    for column, part in enumerate(parts):
        values = [length for index in part for length in steps[index].generated]
        shares, _ = np.histogram(values, bins=LENGTH_BINS, range=(0, max(longest, 1)))
        counts[:, column] = shares / max(len(values), 1)
    chart = _figure("Length of generated responses", "step", "tokens", y_range=(0, longest * 1.05))
    first, last = steps[0].step, steps[-1].step
    mapper = LinearColorMapper(palette=_LENGTH_PALETTE, low=0.0, high=float(max(counts.max(), 1e-9)))
    chart.image(
        [np.sqrt(counts * counts.max()).astype(np.float32)],
        x=first - 0.5,
        y=0,
        dw=last - first + 1,
        dh=longest,
        color_mapper=mapper,
    )
    thin = _thin(rows)
    source = ColumnDataSource(
        {"step": [r["step"] for r in thin]}
        | {name: [r[f"response_length/{name}"] for r in thin] for name in ("p50", "p95", "max")}
    )
    lines = {
        name: [chart.line("step", name, source=source, color=colour, line_width=2)]
        for name, colour in (("max", _LINES[1]), ("p95", _LINES[3]), ("p50", _LINES[2]))
    }
    tips = [("step", "@step"), ("p50", "@p50"), ("p95", "@p95"), ("max", "@max")]
    chart.add_tools(HoverTool(renderers=lines["max"], tooltips=tips, mode="vline", visible=False))
    _legend_above(chart, lines)
    return chart


def timeline(lanes: Sequence[Lane]) -> figure:
    """Every lane over time; a part without anything to do is drawn as idle, never left blank."""
    names = [f"{lane.name}\nidle {lane.idle_s:,.1f} s" for lane in lanes]
    chart = _figure(
        "What each part did",
        "seconds of run time",
        "",
        height=90 + 52 * len(lanes),
        is_zoomable=True,
        y_range=list(reversed(names)),
    )
    chart.yaxis.axis_label = None
    chart.ygrid.visible = False
    chart.min_border_left = 105
    order = list(SPAN_COLOURS)
    spans = [(name, span) for name, lane in zip(names, lanes, strict=True) for span in drawn(lane, limit=MAX_SPANS)]
    spans.sort(key=lambda item: order.index(item[1].kind))  # the legend lists kinds as they come
    source = ColumnDataSource(
        {
            "lane": [name for name, _ in spans],
            "kind": [span.kind for _, span in spans],
            "colour": [SPAN_COLOURS[span.kind] for _, span in spans],
            "start": np.array([span.start for _, span in spans]),
            "end": np.array([span.end for _, span in spans]),
            "seconds": np.array([span.seconds for _, span in spans]),
        }
    )
    bar = chart.hbar(y="lane", left="start", right="end", source=source, height=0.62, color="colour", line_color=None)
    tips = [("what", "@kind"), ("from", "@start{0.00} s"), ("lasted", "@seconds{0.00} s")]
    chart.add_tools(HoverTool(renderers=[bar], tooltips=tips, visible=False))
    legend = Legend(items=[LegendItem(label={"field": "kind"}, renderers=[bar])], orientation="horizontal")
    legend.location, legend.margin = "left", 0
    chart.add_layout(legend, "above")
    return chart


def phases(steps: Sequence[Row]) -> figure:
    """Where the seconds of a step went; a bar is the mean of its steps where there are too many for one each."""
    parts = buckets(len(steps), MAX_BARS)
    columns: dict[str, list[float]] = {"step": [], "width": []}
    for part in parts:
        rows = [steps[index] for index in part]
        columns["step"].append((rows[0]["step"] + rows[-1]["step"]) / 2)
        columns["width"].append(0.85 * len(rows))
        known = {words: fmean(row[f"timing_s/{name}"] for row in rows) for name, (words, _) in PHASES.items()}
        known[OTHER[0]] = max(fmean(row["timing_s/step"] for row in rows) - sum(known.values()), 0.0)
        for words, seconds in known.items():
            columns.setdefault(words, []).append(seconds)
    chart = _figure("Seconds of a step", "step", "seconds")
    order = [*PHASES.values(), OTHER]
    bars = chart.vbar_stack(
        [words for words, _ in order],
        x="step",
        width="width",
        source=ColumnDataSource(columns),
        color=[colour for _, colour in order],
        line_color=None,
    )
    tips = [("step", "@step"), *((words, f"@{{{words}}}{{0.00}} s") for words, _ in order)]
    chart.add_tools(HoverTool(renderers=bars[:1], tooltips=tips, mode="vline", visible=False))
    _legend_above(chart, {words: [bar] for (words, _), bar in zip(order, bars, strict=True)})
    return chart
