"""The charts of the report, drawn by bokeh. Each takes numbers that are already counted and returns one chart."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker, LinearColorMapper
from bokeh.transform import factor_cmap
from numpy.typing import NDArray

from tailrace.dashboard.figures import Chart, Mark, Range, blank, explain, over_steps, roomy
from tailrace.dashboard.thinning import buckets, drawn
from tailrace.observe.metrics.rows import Row
from tailrace.observe.prompts.fairness import ComparedLengths
from tailrace.observe.prompts.fates import StepLengths
from tailrace.observe.time_use import step_parts
from tailrace.observe.time_use.timeline import Lane

Numbers = NDArray[np.float64]
Parts = Mapping[str, float]
"""Seconds of each part of a step (`observe/time_use/step_parts.py`)."""

MAX_POINTS, MAX_BARS, MAX_SPANS, LENGTH_BINS = 500, 120, 1000, 40
LANE_PX, LANE_NAME_PX = 48, 104
TREND_PARTS = 25

SPAN_COLOURS = {
    "generating": "#2a9d8f",
    "training": "#4c78c8",
    "catching up": "#9db4e0",
    "scoring": "#8a6fc0",
    "publishing": "#c9a227",
    "loading weights": "#dcbf4a",
    "lent to training": "#b7c7ea",
    "saving": "#b0649b",
    "starting": "#8a94a6",
    "ending": "#6b7280",
    "down": "#3f4652",
    "idle": "#f0907a",
}
PHASES = {
    step_parts.GENERATE: "#2a9d8f",
    step_parts.BOTH: "#8fcfc6",
    step_parts.REWARDS: "#8a6fc0",
    step_parts.TRAIN: "#4c78c8",
    step_parts.WEIGHTS: "#c9a227",
    step_parts.SAVE: "#b0649b",
    step_parts.EVALUATE: "#d1603d",
    step_parts.START: "#6b7280",
    step_parts.OTHER: "#b4bcc8",
}
"""Colour of each part of a step, from the bottom of a bar up."""
LINES = ("#2a9d8f", "#d1603d", "#4c78c8", "#c9a227", "#8a6fc0", "#b0649b", "#5a9e4b", "#8a94a6")
_LENGTH_SHADES = 12
_LENGTH_PALETTE = tuple(f"{LINES[0]}{255 * shade // _LENGTH_SHADES:02x}" for shade in range(_LENGTH_SHADES + 1))


def rewards(steps: Sequence[Row]) -> Chart:
    """The mean reward of every step, and in a long run a smoothed trend, because single steps are noisy."""
    rows = thinned(steps)
    window = len(steps) // TREND_PARTS if len(steps) > MAX_BARS else 1
    mean, std = values_of(rows, "reward/mean"), values_of(rows, "reward/std")
    trend = _trailing_mean(values_of(steps, "reward/mean"), window)[_shown(len(steps))]
    columns = {"step": values_of(rows, "step"), "mean": mean, "low": mean - std, "high": mean + std, "trend": trend}
    data = ColumnDataSource(columns)
    figure = over_steps(step_range(steps), roomy([*(mean - std), *(mean + std)]))
    figure.varea("step", "low", "high", source=data, fill_color=LINES[0], fill_alpha=0.17)
    line = figure.line("step", "mean", source=data, color=LINES[0], **line_style(len(steps)))
    tips = [("step", "@step"), ("mean", "@mean{0.000}")]
    key = [
        Mark(words="mean", colour=LINES[0]),
        Mark(words="\N{PLUS-MINUS SIGN} 1 std", colour=f"{LINES[0]}2b", shape="area"),
    ]
    if len(rows) == 1:
        figure.scatter("step", "mean", source=data, color=LINES[0], size=8)
    if window > 1:
        figure.line("step", "trend", source=data, color=LINES[1], line_width=2)
        tips.append((f"last {window}", "@trend{0.000}"))
        key.append(Mark(words=f"mean of the last {window} steps", colour=LINES[1]))
    explain(figure, line, tips, mode="vline")
    return Chart(title="Reward of a response", key=tuple(key), figure=figure)


def evaluations(rows: Sequence[Row]) -> Chart:
    names = sorted({name for row in rows for name in row if "@" in name})
    averages = [name for name in names if "/avg@" in name]
    # avg@1 and pass@1 are the same number: one line is enough.
    shown = averages + [name for name in names if "/pass@" in name and not name.endswith("@1")]
    first, last = rows[0]["step"], rows[-1]["step"]
    edge = 0.02 * (last - first) or 0.5
    figure = over_steps(
        (first - edge, last + edge), roomy([row[name] for row in rows for name in shown if name in row])
    )
    key = [
        Mark(words=name.removeprefix("eval/"), colour=colour, shape="line" if name in averages else "dashed")
        for name, colour in zip(shown, cycle(LINES), strict=False)
    ]
    points = [
        (mark, thinned([row for row in rows if name in row]), name) for mark, name in zip(key, shown, strict=True)
    ]
    lines = {
        "steps": [values_of(mine, "step") for _, mine, _ in points],
        "scores": [values_of(mine, name) for _, mine, name in points],
        "colour": [mark.colour for mark in key],
        "dash": ["solid" if mark.shape == "line" else "dashed" for mark in key],
    }
    figure.multi_line("steps", "scores", source=ColumnDataSource(lines), color="colour", line_dash="dash", line_width=2)
    spots = [(mark.words, mark.colour, row["step"], row[name]) for mark, mine, name in points for row in mine]
    columns = dict(zip(("set", "colour", "step", "score"), map(list, zip(*spots, strict=True)), strict=True))
    dots = figure.scatter("step", "score", source=ColumnDataSource(columns), color="colour", size=8)
    explain(figure, dots, [("set", "@set"), ("step", "@step"), ("score", "@score{0.000}")], mode="mouse")
    return Chart(title="Score of evaluations", key=tuple(key), figure=figure)


def lengths(steps: Sequence[StepLengths], rows: Sequence[Row]) -> Chart:
    """How often each length was generated, step by step, under the percentiles."""
    longest = max((length for step in steps for length in step.generated), default=0) or 1
    figure = over_steps(step_range(rows), (0, longest * 1.05))
    first, last = steps[0].step, steps[-1].step
    colours = LinearColorMapper(palette=_LENGTH_PALETTE, low=-0.5, high=_LENGTH_SHADES + 0.5)
    figure.image([_shades(steps, longest)], x=first - 0.5, y=0, dw=last - first + 1, dh=longest, color_mapper=colours)
    thin, colour_of = thinned(rows), {"max": LINES[1], "p95": LINES[3], "p50": LINES[2]}
    columns = {name: values_of(thin, f"response_length/{name}") for name in colour_of}
    data = ColumnDataSource({"step": values_of(thin, "step"), **columns})
    stroke = line_style(len(rows))
    drawn_lines = [figure.line("step", name, source=data, color=hue, **stroke) for name, hue in colour_of.items()]
    tips = [("step", "@step"), *((name, f"@{name}") for name in colour_of)]
    explain(figure, drawn_lines[0], tips, mode="vline")
    key = tuple(Mark(words=name, colour=hue) for name, hue in colour_of.items())
    return Chart(title="Tokens of generated responses", key=key, figure=figure)


def longer(compared: ComparedLengths) -> Chart:
    """Share of responses that are longer than each length: those trained on, and natural ones."""
    trained, natural = compared.trained, compared.natural
    figure = blank("tokens", (0, 1.05 * max(trained[-1], natural.longest)), (0, 1.05))
    distinct = sorted(set(trained))
    shares = [1.0 - bisect_right(trained, length) / len(trained) for length in distinct]
    lines = {"trained on": (distinct, shares), "natural": (natural.lengths, natural.longer)}
    key = tuple(Mark(words=words, colour=colour) for words, colour in zip(lines, LINES, strict=False))
    for mark, (lengths, values) in zip(key, lines.values(), strict=True):
        columns = {"tokens": np.array([0, *lengths]), "share": np.array([1.0, *values])}
        data = ColumnDataSource({name: values[_shown(len(values))] for name, values in columns.items()})
        figure.step("tokens", "share", source=data, color=mark.colour, line_width=2, mode="after")
    return Chart(title="Share of responses longer than", key=key, figure=figure)


def timeline(lanes: Sequence[Lane], *, title: str, window: Range) -> Chart:
    """Every lane over time; a part without anything to do is drawn as idle, never left blank.

    Charts of several runs that are given the same ``window`` (seconds of run time) share one time axis.
    """
    spans = [(place, span) for place, lane in enumerate(lanes) for span in drawn(lane, limit=MAX_SPANS)]
    shown = [kind for kind in SPAN_COLOURS if any(span.kind == kind for _, span in spans)]
    height = 40 + LANE_PX * len(lanes)
    figure = blank("seconds of run time", window, (len(lanes), 0), height=height, left=LANE_NAME_PX, tools="xbox_zoom")
    places = np.array([place for place, _ in spans])
    columns = {
        "kind": [span.kind for _, span in spans],
        "words": [span.words for _, span in spans],
        "start": np.array([span.start for _, span in spans]),
        "end": np.array([span.end for _, span in spans]),
        "seconds": np.array([span.seconds for _, span in spans]),
        "top": places + 0.18,
        "bottom": places + 0.82,
    }
    colours = factor_cmap("kind", palette=[SPAN_COLOURS[kind] for kind in shown], factors=shown)
    boxes = figure.quad(
        "start", "end", "top", "bottom", source=ColumnDataSource(columns), fill_color=colours, line_color=None
    )
    figure.ygrid.visible = False
    figure.yaxis.ticker = FixedTicker(ticks=[place + 0.5 for place in range(len(lanes))])
    figure.yaxis.major_label_overrides = {
        place + 0.5: f"{lane.name}\nidle {lane.idle_s:,.1f} s" for place, lane in enumerate(lanes)
    }
    tips = [("what", "@words"), ("from", "@start{0,0.00} s"), ("lasted", "@seconds{0,0.00} s")]
    explain(figure, boxes, tips, mode="mouse")
    key = tuple(Mark(words=kind, colour=SPAN_COLOURS[kind], shape="area") for kind in shown)
    return Chart(title=title, key=key, figure=figure)


def phases(steps: Sequence[Row], parts: Sequence[Parts]) -> Chart:
    """Seconds of each part of a step. If there are too many steps for one bar each, a bar is the mean of several.
    Parts that no step has are left out."""
    places = buckets(len(steps), MAX_BARS)
    bars = [[steps[index] for index in part] for part in places]
    seconds = [{name: fmean(parts[index].get(name, 0.0) for index in part) for name in PHASES} for part in places]
    highest = max(sum(bar.values()) for bar in seconds) or 1.0
    figure = over_steps(step_range(steps), (0, 1.05 * highest))
    colours = {name: colour for name, colour in PHASES.items() if any(name in each for each in parts)}
    columns = {
        "step": np.array([(rows[0]["step"] + rows[-1]["step"]) / 2 for rows in bars]),
        "width": np.array([0.85 * len(rows) for rows in bars]),
        "steps": [_span_of_steps(rows) for rows in bars],
        **{words: np.array([bar[words] for bar in seconds]) for words in colours},
    }
    stack = figure.vbar_stack(
        list(colours),
        x="step",
        width="width",
        source=ColumnDataSource(columns),
        color=list(colours.values()),
        line_color=None,
    )
    tips = [("step", "@steps"), *((words, f"@{{{words}}}{{0.00}} s") for words in colours)]
    explain(figure, stack[0], tips, mode="vline")
    key = tuple(Mark(words=words, colour=colour, shape="area") for words, colour in colours.items())
    return Chart(title="Seconds of a step", key=key, figure=figure)


def thinned(rows: Sequence[Row]) -> list[Row]:
    """The last row of each bucket: real rows, and always the newest."""
    return [rows[index] for index in _shown(len(rows))]


def _shown(count: int) -> list[int]:
    return [part[-1] for part in buckets(count, MAX_POINTS)]


def line_style(count: int) -> dict[str, float]:
    """Lines of many points are thin, or they would be one patch of colour."""
    return {"line_width": 2, "line_alpha": 1.0} if count <= MAX_BARS else {"line_width": 1, "line_alpha": 0.6}


def _trailing_mean(values: Numbers, window: int) -> Numbers:
    """Mean of the last ``window`` values at each place, of fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    means: Numbers = (sums[ends] - sums[starts]) / (ends - starts)
    return means


def values_of(rows: Sequence[Row], name: str) -> Numbers:
    """One metric of all rows as an array: bokeh stores arrays in the page as bytes."""
    return np.array([row[name] for row in rows], dtype=np.float64)


def step_range(rows: Sequence[Row]) -> Range:
    return rows[0]["step"] - 0.5, rows[-1]["step"] + 0.5


def _shades(steps: Sequence[StepLengths], longest: int) -> NDArray[np.uint8]:
    """The share of responses in every cell of length and step, from 0 to the strongest shade."""
    parts = buckets(len(steps), MAX_BARS)
    shades = np.zeros((LENGTH_BINS, len(parts)), dtype=np.uint8)
    for column, part in enumerate(parts):
        values = [length for index in part for length in steps[index].generated]
        counts, _ = np.histogram(values, bins=LENGTH_BINS, range=(0, longest))
        # The square root keeps rare lengths visible beside common ones.
        shades[:, column] = np.rint(_LENGTH_SHADES * np.sqrt(counts / max(len(values), 1)))
    return shades


def _span_of_steps(rows: Sequence[Row]) -> str:
    first, last = rows[0]["step"], rows[-1]["step"]
    return f"{first:g}" if len(rows) == 1 else f"{first:g} to {last:g}, mean"
