"""The page of a simulated cluster: figures of each policy, who used which node group when, how long jobs waited.

A result is a dictionary, as ``tailrace simulate`` writes it with ``--json``:

    {"policy": ..., "groups": [{"id", "devices"}],
     "spans": [{"group", "job", "kind", "start", "end"}],
     "jobs": [{"id", "model", "submitted", "started", "ended", "steps", "wait_s", "alone_s", "slowdown",
               "device_hours"}],
     "figures": {"makespan_s", "mean_slowdown", "switches_per_step", "bytes_moved", "device_hours_per_step",
                 "utilisation"}}

A value that is not known, such as the end of a job that still runs, is None. The first result is the measure of the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bokeh.embed import json_item
from markupsafe import Markup

from tailrace.dashboard import cluster_charts as charts
from tailrace.dashboard import page
from tailrace.dashboard.cluster_charts import Box
from tailrace.dashboard.figures import Chart

Result = Mapping[str, Any]
Rows = list[list[str]]

DETAIL_BOXES = 1500
"""Spans of the chart that shows the beginning, where the whole time has too many to be drawn one by one."""
ZOOM = "Drag over a stretch of time to enlarge it; double-click to go back."
_UNKNOWN = "\N{EN DASH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    id: str
    heading: str
    tables: Sequence[Rows] = ()
    charts: Sequence[str] = ()
    """Names of charts."""
    notes: Sequence[str] = ()
    in_pairs: bool = False


def write_cluster_page(results: Sequence[Result], path: Path, *, title: str = "Jobs on shared node groups") -> Path:
    """Write the page of one or more policies on the same jobs, and return its path."""
    if not results:
        raise ValueError("there is no result to show")
    timelines = _timelines(results)
    waits = _waits(results)
    first = results[0]
    sections = [
        PageSection(
            id="figures", heading="What each policy cost", tables=[figure_rows(results)], notes=_figure_notes(first)
        ),
        PageSection(id="cost", heading="Device-hours of an optimizer step", charts=["hours"]),
        PageSection(
            id="timelines", heading="Node groups over time", charts=[*timelines], notes=_timeline_notes(results)
        ),
        PageSection(id="waits", heading="How long jobs waited", charts=[*waits], in_pairs=True, notes=[_WAITS]),
    ]
    lead = f"{_count(len(first['jobs']), 'job')} on {_count(len(first['groups']), 'node group')}, in virtual time."
    drawings = {"hours": _hours(results), **timelines, **waits}
    return write(path, title=title, lead=lead, sections=sections, drawings=drawings)


def write(
    path: Path,
    *,
    title: str,
    lead: str,
    sections: Sequence[PageSection],
    drawings: Mapping[str, Chart],
    tiles: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write one self-contained page of these sections."""
    text = page.template("cluster.html").render(
        title=title,
        lead=lead,
        tiles=tiles,
        sections=sections,
        charts=drawings,
        chart_json=page.embed([json_item(chart.figure, f"plot-{name}") for name, chart in drawings.items()]),
        bokeh=Markup(page.bokeh_script()),
        css=Markup(page.asset("page.css")),
        script=Markup(page.asset("draw.js")),
    )
    path.write_text(text, encoding="utf-8")
    return path


def figure_rows(results: Sequence[Result]) -> Rows:
    """The table of figures: a heading, then one row per policy."""
    heading = ["policy", "makespan", "of the first", "slowdown", "waits (mean)", "waits (p95)", "switches/step",
               "moved", "device-h/step", "saved", "in use"]  # fmt: skip
    first = results[0]["figures"]
    return [heading, *(_figure_row(result, first) for result in results)]


def _figure_row(result: Result, first: Mapping[str, Any]) -> list[str]:
    figures = result["figures"]
    waits = sorted(_known(job["wait_s"] for job in result["jobs"]))
    return [
        result["policy"],
        _duration(figures["makespan_s"]),
        _number(_ratio(figures["makespan_s"], first["makespan_s"]), "{:.1%}"),
        _number(figures["mean_slowdown"], "{:.3f}x"),
        _duration(sum(waits) / len(waits) if waits else None),
        _duration(waits[min(int(0.95 * len(waits)), len(waits) - 1)] if waits else None),
        _number(figures["switches_per_step"], "{:.2f}"),
        _number(figures["bytes_moved"], "{:,.1f} TB", scale=1e-12),
        _number(figures["device_hours_per_step"], "{:,.3f}"),
        _number(_saving(figures), "{:.1%}"),
        _number(figures["utilisation"], "{:.1%}"),
    ]


_WAITS = (
    "A job waits from its submission until it may start. Slowdown: time from its start to its end over the time"
    " that it takes without sharing. A curve further to the left is better."
)


def _figure_notes(first: Result) -> list[str]:
    return [
        f'Makespan: from the first submission to the last end; "of the first" compares it with {first["policy"]}.'
        " Saved: device-hours of an optimizer step, training and rollout devices together, compared with"
        " jobs that have all devices to themselves (alone). In use: share of the time in which node groups compute."
    ]


def _timeline_notes(results: Sequence[Result]) -> list[str]:
    notes = [ZOOM + " Boxes are training phases; a gap is free time. A paler box stands for several with free time"
             " between them."]  # fmt: skip
    return notes + charts.left_out(max(len(result["groups"]) for result in results))


def _timelines(results: Sequence[Result]) -> dict[str, Chart]:
    """One chart per policy under one time axis; where boxes had to be drawn together, one more of the beginning."""
    end = max((span["end"] for result in results for span in result["spans"]), default=1.0)
    jobs = {name: None for result in results for name in _job_names(result)}
    colours = charts.job_colours([*jobs])
    found: dict[str, Chart] = {}
    for number, result in enumerate(results):
        boxes = [_box(span) for span in result["spans"]]
        groups = {group["id"]: f"{group['id']} ({group['devices']} dev.)" for group in result["groups"]}
        found[f"timeline-{number}"] = charts.gantt(boxes, groups, colours, title=result["policy"], window=(0.0, end))
        if len(boxes) > charts.MAX_BOXES:
            until = sorted(box.end for box in boxes)[DETAIL_BOXES]
            begun = [box for box in boxes if box.start < until]
            title = f"{result['policy']}: the beginning"
            found[f"beginning-{number}"] = charts.gantt(begun, groups, colours, title=title, window=(0.0, until))
    return found


def _job_names(result: Result) -> list[str]:
    """All jobs, in the order of the result; a job that has only spans comes last."""
    return [*(str(job["id"]) for job in result["jobs"]), *(str(span["job"]) for span in result["spans"])]


def _box(span: Mapping[str, Any]) -> Box:
    return Box(
        group=str(span["group"]), job=str(span["job"]), kind=str(span["kind"]), start=span["start"], end=span["end"]
    )


def _waits(results: Sequence[Result]) -> dict[str, Chart]:
    shares, slowdowns = {}, {}
    for result in results:
        jobs = result["jobs"]
        shares[result["policy"]] = [job["wait_s"] / job["alone_s"] for job in jobs if _is_over(job)]
        slowdowns[result["policy"]] = _known(job["slowdown"] for job in jobs)
    return {
        "waits": charts.distribution(
            shares, title="Share of jobs that waited at most", x_title="waiting time / time alone"
        ),
        "slowdowns": charts.distribution(
            slowdowns, title="Share of jobs slowed down at most", x_title="slowdown", lowest=1.0
        ),
    }


def _is_over(job: Mapping[str, Any]) -> bool:
    return job["wait_s"] is not None and bool(job["alone_s"])


def _hours(results: Sequence[Result]) -> Chart:
    figures = {result["policy"]: result["figures"] for result in results}
    hours = {"alone": results[0]["figures"]["alone_device_hours_per_step"] or 0.0}
    hours |= {policy: each["device_hours_per_step"] or 0.0 for policy, each in figures.items()}
    words = {name: f"{value:,.3g}" for name, value in hours.items()}
    words |= {
        policy: f"{words[policy]}, {saving:.1%} saved" for policy, each in figures.items() if (saving := _saving(each))
    }
    return charts.bars(hours, words, title="Training and rollout devices together", x_title="device-hours per step")


def _known(values: Any) -> list[float]:
    return [value for value in values if value is not None]


def _ratio(value: float | None, measure: float | None) -> float | None:
    return None if value is None or not measure else value / measure


def _saving(figures: Mapping[str, Any]) -> float | None:
    """Share of the device-hours per step that jobs need when each has its own devices."""
    saving = figures["saving"]
    return None if saving is None else round(saving, 3) + 0.0  # not -0.0


def _number(value: float | None, form: str, *, scale: float = 1.0) -> str:
    return _UNKNOWN if value is None else form.format(value * scale)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes} min"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
