"""The charts of a shared cluster: who used which node group when, how long jobs waited, and what it all cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from bokeh.models import ColumnDataSource, FixedTicker

from tailrace.dashboard.charts import LINES
from tailrace.dashboard.figures import Chart, Mark, Range, blank, explain
from tailrace.dashboard.thinning import buckets

MAX_BOXES, MAX_GROUPS, MAX_POINTS = 8000, 24, 400
ROW_PX, THIN_ROW_PX, MANY_ROWS = 30, 16, 16
GROUP_NAME_PX = 112
HOURS_FROM_S = 3 * 3600
"""A time axis that is longer than this counts hours."""
TRANSFER, TRANSFER_COLOUR = "moving state", "#6b7280"
TRANSFERS = ("offload", "load", "prefetch", "switch", "move")
"""Kinds of spans in which a group computes nothing because state of a job is moved."""
_SHADES = {"hold": 0.3}
"""How strongly a kind of span is drawn; 1 where it is not named."""
_JOB_COLOURS = (*LINES[:7], "#3a86a8", "#a0522d", "#7f8c3a", "#d4739a", "#5560a8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A stretch of time of one node group."""

    group: str
    job: str
    kind: str
    start: float
    end: float
    count: int = 1
    """Spans that are drawn as this one."""
    busy_s: float | None = None
    """Seconds that are not free, if several spans are drawn as one; None: all of them."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def words(self) -> str:
        return self.kind if self.count == 1 else f"{self.kind}, {self.count} times, {self.share:.0%} of the time in use"

    @property
    def share(self) -> float:
        return 1.0 if self.busy_s is None or not self.seconds else min(self.busy_s / self.seconds, 1.0)


def job_colours(jobs: Sequence[str]) -> dict[str, str]:
    """One colour for each job, the same on all charts of a page. With more jobs than colours they repeat."""
    return dict(zip(jobs, cycle(_JOB_COLOURS), strict=False))


def left_out(num_groups: int) -> list[str]:
    """What to say about groups that ``gantt`` does not draw: at most one sentence."""
    return [f"The first {MAX_GROUPS} of {num_groups} node groups are drawn."] if num_groups > MAX_GROUPS else []


def gantt(
    boxes: Sequence[Box], groups: Mapping[str, str], colours: Mapping[str, str], *, title: str, window: Range
) -> Chart:
    """Node groups over time. ``groups``: the words beside each row, by id. Time without a box is free."""
    shown = list(groups)[:MAX_GROUPS]
    row_px = ROW_PX if len(shown) <= MANY_ROWS else THIN_ROW_PX
    unit, unit_s = ("hours", 3600.0) if window[1] - window[0] > HOURS_FROM_S else ("seconds", 1.0)
    height, x_range = 56 + row_px * len(shown), (window[0] / unit_s, window[1] / unit_s)
    figure = blank(unit, x_range, (len(shown), 0), height=height, left=GROUP_NAME_PX, tools="xbox_zoom")
    drawn = thin([box for box in boxes if box.group in shown], shortest=shortest_box(window, len(shown)))
    place = {group: row + 0.5 for row, group in enumerate(shown)}
    columns = {
        "job": [box.job for box in drawn],
        "what": [box.words for box in drawn],
        "colour": [_colour(box, colours) for box in drawn],
        "shade": np.array([_SHADES.get(box.kind, 1.0) * box.share for box in drawn], dtype=np.float32),
        "y": np.array([place[box.group] for box in drawn]),
        "from": np.array([box.start for box in drawn]),
        "start": np.array([box.start / unit_s for box in drawn]),
        "end": np.array([box.end / unit_s for box in drawn]),
        "seconds": np.array([box.seconds for box in drawn]),
    }
    bars = figure.hbar(
        y="y", left="start", right="end", height=0.72, source=ColumnDataSource(columns), fill_color="colour",
        fill_alpha="shade", line_color=None,
    )  # fmt: skip
    figure.ygrid.visible = False
    figure.yaxis.ticker = FixedTicker(ticks=[*place.values()])
    figure.yaxis.major_label_overrides = {place[group]: groups[group] for group in shown}
    tips = [("job", "@job"), ("what", "@what"), ("from", "@from{0,0.0} s"), ("lasted", "@seconds{0,0.0} s")]
    explain(figure, bars, tips, mode="mouse")
    return Chart(title=title, key=_job_key(drawn, colours), figure=figure)


def shortest_box(window: Range, num_groups: int) -> float:
    """Seconds below which boxes are drawn together, so that a chart stays small however long it is."""
    return (window[1] - window[0]) * max(num_groups, 1) / MAX_BOXES


def thin(boxes: Sequence[Box], *, shortest: float) -> list[Box]:
    """The boxes of each group in order; those shorter than ``shortest`` are drawn as one with neighbours that are near.

    A run of short boxes is shown as one box for each job and kind, beside each other and as wide as their shares of the
    time in use, the paler the more of the time was free.
    """
    ordered = sorted(boxes, key=lambda box: (box.group, box.start))
    clusters = _clusters(ordered, shortest)
    return [box for cluster in clusters for box in (cluster if len(cluster) == 1 else _blend(cluster))]


def _blend(cluster: Sequence[Box]) -> list[Box]:
    same: dict[tuple[str, str], list[float]] = {}
    for box in cluster:
        same.setdefault((box.job, box.kind), []).append(box.seconds)
    busy_s, start = sum(box.seconds for box in cluster), cluster[0].start
    whole_s, found = cluster[-1].end - start, list[Box]()
    for (job, kind), seconds in same.items():
        end = start + whole_s * (sum(seconds) / busy_s if busy_s else 1 / len(same))
        box = Box(group=cluster[0].group, job=job, kind=kind, start=start, end=end)
        found.append(replace(box, count=len(seconds), busy_s=sum(seconds)))
        start = end
    return found


def _clusters(boxes: Sequence[Box], shortest: float) -> list[list[Box]]:
    """Every long box alone; short ones of a group together until they reach ``shortest``."""
    found: list[list[Box]] = []
    is_open = False
    for box in boxes:
        is_short = box.seconds < shortest
        if is_open and is_short and found[-1][0].group == box.group and box.end - found[-1][0].start <= shortest:
            found[-1].append(box)
        else:
            found.append([box])
        is_open = is_short
    return found


def distribution(curves: Mapping[str, Sequence[float]], *, title: str, x_title: str, lowest: float = 0.0) -> Chart:
    """Share of jobs whose value is at most x, one line per policy. ``lowest``: where the axis begins."""
    highest = max((value for values in curves.values() for value in values), default=lowest)
    end = lowest + (1.03 * (highest - lowest) or 1.0)
    figure = blank(x_title, (lowest, end), (0, 1.03))
    figure.yaxis.ticker.desired_num_ticks = 5
    key = [Mark(words=name, colour=colour) for name, colour in zip(curves, cycle(LINES), strict=False)]
    for mark, values in zip(key, curves.values(), strict=True):
        ordered = sorted(values)
        kept = [part[-1] for part in buckets(len(ordered), MAX_POINTS)]
        columns = {
            "value": np.array([lowest, *(ordered[index] for index in kept), end]),
            "share": np.array([0.0, *((index + 1) / len(ordered) for index in kept), 1.0]),
            "policy": [mark.words] * (len(kept) + 2),
        }
        line = figure.step(
            "value", "share", source=ColumnDataSource(columns), color=mark.colour, line_width=2, mode="after"
        )
        tips = [("policy", "@policy"), ("at most", "@value{0,0.00}"), ("share of jobs", "@share{0%}")]
        explain(figure, line, tips, mode="mouse")
    return Chart(title=title, key=tuple(key), figure=figure)


def bars(values: Mapping[str, float], words: Mapping[str, str], *, title: str, x_title: str) -> Chart:
    """One bar per policy, each with its words inside the tip and at its end."""
    names = list(values)
    places = {name: row + 0.5 for row, name in enumerate(names)}
    highest = max(values.values(), default=0.0) or 1.0
    figure = blank(x_title, (0, 1.3 * highest), (len(names), 0), height=56 + 36 * len(names), left=GROUP_NAME_PX)
    columns = {
        "y": np.array([places[name] for name in names]),
        "value": np.array([values[name] for name in names]),
        "words": [words[name] for name in names],
        "colour": [colour for _, colour in zip(names, cycle(LINES), strict=False)],
    }
    data = ColumnDataSource(columns)
    figure.hbar(y="y", right="value", left=0, height=0.6, source=data, fill_color="colour", line_color=None)
    figure.text("value", "y", text="words", source=data, x_offset=6, text_baseline="middle", text_font_size="12px",
                text_color="#8a94a6")  # fmt: skip
    figure.ygrid.visible = False
    figure.yaxis.ticker = FixedTicker(ticks=[*places.values()])
    figure.yaxis.major_label_overrides = {place: name for name, place in places.items()}
    return Chart(title=title, key=(), figure=figure)


def _colour(box: Box, colours: Mapping[str, str]) -> str:
    return TRANSFER_COLOUR if box.kind in TRANSFERS else colours.get(box.job, TRANSFER_COLOUR)


def _job_key(boxes: Sequence[Box], colours: Mapping[str, str]) -> tuple[Mark, ...]:
    """The jobs by colour, unless they are so many that colours repeat or the names fill the page."""
    present = {box.job for box in boxes}
    names = [job for job in colours if job in present]
    marks = [Mark(words=job, colour=colours[job], shape="area") for job in names]
    if len(marks) > len(_JOB_COLOURS):
        marks = [Mark(words=f"{len(marks)} jobs, colours repeat", colour=_JOB_COLOURS[0], shape="area")]
    if any(box.kind in TRANSFERS for box in boxes):
        marks.append(Mark(words=TRANSFER, colour=TRANSFER_COLOUR, shape="area"))
    return tuple(marks)
