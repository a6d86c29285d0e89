"""Draws one optimizer step of several runs, lane by lane, from their journals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from tailrace.core import events as ev
from tailrace.dashboard.charts import SPAN_COLOURS
from tailrace.observe.journal import journal_file
from tailrace.observe.time_use.timeline import Lane, Timeline

WIDTH, LEFT, LANE, GAP = 900, 190, 26, 44
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px } .bold { font-weight: 600 }
  .page { fill: #fff } .idle { fill: none; stroke: #d1d9e0 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .page { fill: #0d1117 } .idle { stroke: #3d444d } }
"""


def steps_picture(journals: Mapping[str, Path], *, step: int) -> str:
    """All arms have the same scale. ``step``: number of the step, from 1 on."""
    found = {arm: _step(journal, step) for arm, journal in journals.items()}
    scale = (WIDTH - LEFT - 20) / max(end - start for start, end, _ in found.values())
    parts, top = [], 24.0
    for arm, (start, end, lanes) in found.items():
        parts.append(_text(12, top, f"{arm}: {end - start:.2f} s", "bold"))
        for lane in lanes:
            top += LANE
            parts += _lane(lane, top, start, end, scale)
        top += GAP
    parts += _legend({span.kind for _, _, lanes in found.values() for lane in lanes for span in lane.spans}, top)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 16:.0f}" role="img">'
    page = f'<rect class="page" width="{WIDTH}" height="{top + 16:.0f}" rx="8"/>'
    title = f"<title>Step {step}: when instances generate and when the trainer computes</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", page, *parts, "</svg>\n"])


def _step(journal: Path, step: int) -> tuple[float, float, list[Lane]]:
    """Begin and end of a step, and the lanes of the instances and the trainer."""
    timeline, ends = Timeline(), {0: 0.0}
    for _, entry in journal_file.read(journal):
        timeline.feed(entry)
        if isinstance(entry.event, ev.StepTrained):
            ends[entry.event.version] = entry.now
    lanes = [lane for lane in timeline.lanes() if lane.name != "rewards"]
    return ends[step - 1], ends[step], lanes


def _lane(lane: Lane, top: float, start: float, end: float, scale: float) -> Iterator[str]:
    yield _text(12, top + 14, lane.name)
    yield f'<rect class="idle" x="{LEFT}" y="{top}" width="{(end - start) * scale:.1f}" height="{LANE - 6}"/>'
    for span in lane.spans:
        first, last = max(span.start, start), min(span.end, end)
        if last > first:
            x, width = LEFT + (first - start) * scale, (last - first) * scale
            fill = SPAN_COLOURS[span.kind]
            yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{LANE - 6}" fill="{fill}"/>'


def _legend(kinds: set[str], top: float) -> Iterator[str]:
    x = LEFT
    for kind in [kind for kind in SPAN_COLOURS if kind in kinds - {"starting"}]:
        yield f'<rect x="{x}" y="{top - 10}" width="12" height="12" fill="{SPAN_COLOURS[kind]}"/>'
        yield _text(x + 18, top, kind, "small")
        x += 36 + 7 * len(kind)


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'
