"""The charts of the report. Each takes numbers that are already counted and returns one chart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from tailrace.dashboard.plane import Box, Chart, Label, Mark, Plane, Range, ticks
from tailrace.dashboard.thinning import buckets, drawn
from tailrace.observe.fates import StepLengths
from tailrace.observe.metrics import Row
from tailrace.observe.timeline import Lane

MAX_POINTS, MAX_BARS, MAX_SPANS, LENGTH_BINS = 500, 120, 1500, 40
LANE_PX = 48

SPAN_COLOURS = {
    "generating": "#2a9d8f",
    "training": "#4c78c8",
    "catching up": "#9db4e0",
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
LINES = ("#2a9d8f", "#d1603d", "#4c78c8", "#c9a227", "#8a6fc0", "#b0649b", "#5a9e4b", "#8a94a6")
_LENGTH_SHADES = 12


def rewards(steps: Sequence[Row]) -> Chart:
    rows = _thin(steps)
    xs, mean = [row["step"] for row in rows], [row["reward/mean"] for row in rows]
    low = [row["reward/mean"] - row["reward/std"] for row in rows]
    high = [row["reward/mean"] + row["reward/std"] for row in rows]
    plane = Plane(_step_range(steps), _roomy(low + high))
    plane.band(xs, low, high, f"{LINES[0]}2b")
    plane.line(xs, mean, LINES[0])
    if len(rows) == 1:
        plane.dots(xs, mean, LINES[0])
    plane.say_at(xs, [f"step {row['step']:g}\nmean {row['reward/mean']:.3f}" for row in rows])
    key = (
        Mark(words="mean", colour=LINES[0]),
        Mark(words="\N{PLUS-MINUS SIGN} 1 std", colour=f"{LINES[0]}2b", shape="area"),
    )
    return plane.over_steps("Reward of a response", key)


def evaluations(rows: Sequence[Row]) -> Chart:
    names = sorted({name for row in rows for name in row if "@" in name})
    averages = [name for name in names if "/avg@" in name]
    # avg@1 and pass@1 are the same number: one line is enough.
    shown = averages + [name for name in names if "/pass@" in name and not name.endswith("@1")]
    first, last = rows[0]["step"], rows[-1]["step"]
    edge = 0.02 * (last - first) or 0.5
    plane = Plane((first - edge, last + edge), _roomy([row[name] for row in rows for name in shown if name in row]))
    key = []
    for number, name in enumerate(shown):
        mine = _thin([row for row in rows if name in row])
        xs, scores, colour = [row["step"] for row in mine], [row[name] for row in mine], LINES[number % len(LINES)]
        plane.line(xs, scores, colour, is_dashed=name not in averages)
        plane.dots(xs, scores, colour)
        shape = "line" if name in averages else "dashed"
        key.append(Mark(words=name.removeprefix("eval/"), colour=colour, shape=shape))
    by_step = _scores_by_step(rows, shown)
    plane.say_at(list(by_step), list(by_step.values()))
    return plane.over_steps("Score of evaluations", key)


def lengths(steps: Sequence[StepLengths], rows: Sequence[Row]) -> Chart:
    """How often each length was generated, step by step, under the percentiles."""
    longest = max((length for step in steps for length in step.generated), default=0) or 1
    plane = Plane(_step_range(rows), (0, longest * 1.05))
    shades: list[list[Box]] = [[] for _ in range(_LENGTH_SHADES + 1)]
    height = longest / LENGTH_BINS
    for part in buckets(len(steps), MAX_BARS):
        left, right = steps[part[0]].step - 0.5, steps[part[-1]].step + 0.5
        shares = _histogram([length for index in part for length in steps[index].generated], longest)
        for number, share in enumerate(shares):
            # The square root keeps rare lengths visible beside common ones.
            shades[round(_LENGTH_SHADES * share**0.5)].append((left, right, number * height, (number + 1) * height))
    for number, boxes in enumerate(shades[1:], start=1):
        if boxes:
            plane.boxes(boxes, f"{LINES[0]}{round(255 * number / _LENGTH_SHADES):02x}")
    thin, colours = _thin(rows), {"max": LINES[1], "p95": LINES[3], "p50": LINES[2]}
    xs = [row["step"] for row in thin]
    for name, colour in colours.items():
        plane.line(xs, [row[f"response_length/{name}"] for row in thin], colour)
    tips = ["\n".join(f"{name} {row[f'response_length/{name}']:g}" for name in colours) for row in thin]
    plane.say_at(xs, [f"step {x:g}\n{tip}" for x, tip in zip(xs, tips, strict=True)])
    key = [Mark(words=name, colour=colour) for name, colour in colours.items()]
    return plane.over_steps("Tokens of generated responses", key)


def timeline(lanes: Sequence[Lane], *, title: str, window: Range) -> Chart:
    """Every lane over time; a part without anything to do is drawn as idle, never left blank.

    Charts of several runs that are given the same ``window`` (seconds of run time) share one time axis.
    """
    plane = Plane(window, (len(lanes), 0))
    boxes: dict[str, list[Box]] = {kind: [] for kind in SPAN_COLOURS}
    for place, lane in enumerate(lanes):
        for span in drawn(lane, limit=MAX_SPANS):
            box = span.start, span.end, place + 0.82, place + 0.18
            boxes[span.kind].append(box)
            plane.say(box, f"{lane.name}: {span.kind}\nfrom {span.start:,.2f} s for {span.seconds:,.2f} s")
    shown = {kind: colour for kind, colour in SPAN_COLOURS.items() if boxes[kind]}
    for kind, colour in shown.items():
        plane.boxes(boxes[kind], colour)
    seconds = ticks(*window, 10)
    return Chart(
        title=title,
        key=tuple(Mark(words=kind, colour=colour, shape="area") for kind, colour in shown.items()),
        shapes=plane.shapes(seconds, ()),
        x_title="seconds of run time",
        x_labels=tuple(Label(percent=plane.x(second) / 10, words=f"{second:,g}") for second in seconds),
        y_labels=tuple(
            Label(percent=plane.y(place + 0.5), words=f"{lane.name}\nidle {lane.idle_s:,.1f} s")
            for place, lane in enumerate(lanes)
        ),
        tips=tuple(plane.tips),
        height_px=LANE_PX * len(lanes),
        zoom=window,
    )


def phases(steps: Sequence[Row]) -> Chart:
    """Where the seconds of a step went; a bar is the mean of its steps where there are too many for one each."""
    bars = [[steps[index] for index in part] for part in buckets(len(steps), MAX_BARS)]
    seconds = [_phase_seconds(rows) for rows in bars]
    highest = max(sum(bar.values()) for bar in seconds) or 1.0
    plane = Plane(_step_range(steps), (0, 1.05 * highest))
    boxes: dict[str, list[Box]] = {}
    for rows, bar in zip(bars, seconds, strict=True):
        first, last, gap, bottom = rows[0]["step"], rows[-1]["step"], 0.075 * len(rows), 0.0
        for words, height in bar.items():
            boxes.setdefault(words, []).append((first - 0.5 + gap, last + 0.5 - gap, bottom, bottom + height))
            bottom += height
        name = f"step {first:g}" if len(rows) == 1 else f"steps {first:g} to {last:g}, mean"
        parts = [f"{words} {height:.2f} s" for words, height in bar.items()]
        plane.say((first - 0.5, last + 0.5, *plane.y_range), "\n".join([name, *parts]))
    colours = dict((*PHASES.values(), OTHER))
    for words, colour in colours.items():
        plane.boxes(boxes[words], colour)
    key = [Mark(words=words, colour=colour, shape="area") for words, colour in colours.items()]
    return plane.over_steps("Seconds of a step", key)


def _thin(rows: Sequence[Row]) -> list[Row]:
    """The last row of each bucket: real rows, and always the newest."""
    return [rows[part[-1]] for part in buckets(len(rows), MAX_POINTS)]


def _step_range(rows: Sequence[Row]) -> Range:
    return rows[0]["step"] - 0.5, rows[-1]["step"] + 0.5


def _roomy(values: Sequence[float]) -> Range:
    """A little more than the values need, so that no line runs along an edge."""
    low, high = min(values), max(values)
    edge = 0.06 * (high - low) or 0.5
    return low - edge, high + edge


def _scores_by_step(rows: Sequence[Row], names: Sequence[str]) -> dict[float, str]:
    """What each evaluated step scored; the sets of one step may come in several rows."""
    words: dict[float, str] = {}
    for row in rows:
        scores = [f"\n{name.removeprefix('eval/')} {row[name]:.3f}" for name in names if name in row]
        words[row["step"]] = words.get(row["step"], f"step {row['step']:g}") + "".join(scores)
    return words


def _histogram(values: Sequence[int], longest: int) -> list[float]:
    """The share of values in each bin of 0 .. longest."""
    counts = [0] * LENGTH_BINS
    for value in values:
        counts[min(value * LENGTH_BINS // longest, LENGTH_BINS - 1)] += 1
    return [count / len(values) for count in counts] if values else [0.0] * LENGTH_BINS


def _phase_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Mean seconds of every phase, and of what is in none."""
    known = {words: fmean(row[f"timing_s/{name}"] for row in rows) for name, (words, _) in PHASES.items()}
    rest = fmean(row["timing_s/step"] for row in rows) - sum(known.values())
    return {**known, OTHER[0]: max(rest, 0.0)}
