"""Draw the pictures of docs/staleness.md from what they show: the ledger's example and a simulated run.

    python scripts/staleness_pictures.py [--into docs/images]

Nothing in them is typed in: buffers are those of `staleness_example.py` on the real ledger, the timeline is the journal
of `scenarios/two_instances.toml` under the real coordinator. Each picture brings its own background, light or dark.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from html import escape
from pathlib import Path

from staleness_example import BATCH_SIZE, Place, Scene, scenes

from tailrace.core.commands import Accumulate
from tailrace.core.journal import Entry
from tailrace.observe.time_use.timeline import GENERATING, LOADING, PUBLISHING, TRAINER, TRAINING, Lane, Span, Timeline
from tailrace.sim.result import simulate
from tailrace.sim.scenario_file import load_scenario

ROOT = Path(__file__).parents[1]
VERSION_COLOURS = ("#3f6fa3", "#1f7d30", "#a53373", "#a85400", "#237380", "#7457a3", "#7d6200")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px } .soft { fill: #59636e }
  .bold { font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end } .on { fill: #fff }
  .page { fill: #fff } .card { fill: none; stroke: #d1d9e0 } .line { stroke: #d1d9e0 }
  .free { fill: none; stroke: #8c959f; stroke-dasharray: 2 4 }
  .reserved { fill: #fff; stroke: #3f6fa3; stroke-width: 1.5; stroke-dasharray: 6 3 }
  .finished { fill: #3f6fa3; stroke: #3f6fa3; stroke-width: 1.5 }
  .ready { fill: #1f7d30 } .stuck { fill: #b3341f } .waiting { fill: #59636e }
  .loading, .publishing { fill: #8c959f } .training { fill: #59636e } .differ { fill: #b3341f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .soft { fill: #9aa4af } .on { fill: #fff } .page { fill: #0d1117 }
    .card, .line { stroke: #3d444d } .free { stroke: #7d8590 } .reserved { fill: #0d1117; stroke: #79a8dd }
    .loading, .publishing { fill: #6e7681 } .training { fill: #59636e } .ready { fill: #238636 }
  }
"""


def picture(width: int, height: int, title: str, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    body = "\n".join([box(0, 0, width, height, "page", radius=8), *parts])
    return f'{head} role="img">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def box(x: float, y: float, width: float, height: float, kind: str, *, radius: int = 4, colour: str = "") -> str:
    style = f' style="fill: {colour}"' if colour else ""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}"'
    return f'<rect {size} class="{kind}"{style}/>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


# Buffers

PANEL_WIDTH, PANEL_HEIGHT, SLOT_WIDTH, SLOT_HEIGHT = 300, 206, 124, 30


def buffers_picture(example: list[Scene]) -> str:
    parts = [part for scene in example for part in _panel(scene)]
    rows, legend_y = -(-len(example) // 3), 20
    for x, kind, words in ((20, "reserved", "reserved"), (140, "finished", "finished"), (258, "free", "free slot")):
        parts += [box(x, legend_y - 10, 26, 14, kind), text(x + 34, legend_y + 2, words, "small soft")]
    legend = "a0: group a, oldest version 0.  Bold: the batch that trains next"
    parts.append(text(3 * PANEL_WIDTH + 20, legend_y + 2, legend, "small soft end"))
    return picture(3 * PANEL_WIDTH + 40, rows * PANEL_HEIGHT + 46, "The buffers of the ledger, step by step", parts)


def _panel(scene: Scene) -> list[str]:
    column, row = (scene.number - 1) % 3, (scene.number - 1) // 3
    x, y = 20 + column * PANEL_WIDTH, 36 + row * PANEL_HEIGHT
    parts = [box(x + 4, y + 4, PANEL_WIDTH - 8, PANEL_HEIGHT - 8, "card", radius=6)]
    parts.append(text(x + 16, y + 26, f"{scene.number}.  {scene.title}", "bold"))
    width = 8 * len(scene.state) + 14
    parts.append(box(x + PANEL_WIDTH - 16 - width, y + 12, width, 20, scene.state, radius=10))
    parts.append(text(x + PANEL_WIDTH - 16 - width / 2, y + 26, scene.state, "small on middle"))
    for index, buffer in enumerate(scene.buffers):
        left = x + 16 + index * (SLOT_WIDTH + 20)
        kind = "bold" if index == 0 else "soft"
        parts.append(text(left, y + 56, f"batch {scene.current + index}", f"small {kind}"))
        parts += _slots(left, y + 64, buffer)
    held = ", ".join(f"{name} at version {version}" for name, version in scene.instances.items())
    parts.append(text(x + 16, y + 150, held, "small soft"))
    parts.append(text(x + 16, y + 168, f"may begin: {scene.row[-1]}", "small soft"))
    if scene.trained:
        staleness = ", ".join(f"{group} {value}" for group, value in scene.trained)
        parts.append(text(x + 16, y + 186, f"trained, with staleness: {staleness}", "small soft"))
    return parts


def _slots(x: float, y: float, buffer: tuple[Place, ...]) -> list[str]:
    parts = []
    for index in range(BATCH_SIZE):
        top = y + index * (SLOT_HEIGHT + 6)
        place = buffer[index] if index < len(buffer) else None
        kind = "free" if place is None else "finished" if place.is_finished else "reserved"
        parts.append(box(x, top, SLOT_WIDTH, SLOT_HEIGHT, kind))
        if place is not None:
            on = " on" if place.is_finished else ""
            parts.append(text(x + 12, top + 20, f"{place.group}{place.version}", "bold" + on))
            if place.moved_from is not None:
                words = f"from {place.moved_from}"
                parts.append(text(x + SLOT_WIDTH - 10, top + 20, words, "small end" + on))
    return parts


# Timeline

LEFT, WIDTH, LANE_HEIGHT, BAR_HEIGHT = 96, 820, 44, 26


def timeline_picture() -> str:
    timeline, steps = Timeline(), dict[int, list[int]]()

    def record(entry: Entry) -> None:
        timeline.feed(entry)
        for command in entry.commands:
            if isinstance(command, Accumulate):
                steps[command.version] = sorted({command.version - oldest for oldest in command.oldest})

    simulate(load_scenario(ROOT / "scenarios" / "two_instances.toml"), "staleflow-2", record=record)
    lanes = [lane for lane in timeline.lanes() if lane.name.startswith("instance") or lane.name == TRAINER]
    scale = WIDTH / max(lane.end for lane in lanes)
    parts = _axis(max(lane.end for lane in lanes), scale, 24 + LANE_HEIGHT * 4)
    for number, lane in enumerate(lanes):
        y = 24 + LANE_HEIGHT * number
        parts.append(text(LEFT - 12, y + 18, lane.name, "small end"))
        trained = iter(steps.items())
        parts += [part for span in lane.spans for part in _bar(span, y, scale, trained)]
    y = 24 + LANE_HEIGHT * 3
    parts.append(text(LEFT - 12, y + 10, "versions differ", "small end"))
    parts += [box(LEFT + a * scale, y, (b - a) * scale, 12, "differ") for a, b in versions_differ(lanes)]
    words = "Instances: the version they generate with. Grey: weights are loaded or published. "
    words += "Trainer: a step, and below it the staleness of what it trains."
    parts.append(text(20, 24 + LANE_HEIGHT * 4 + 42, words, "small soft"))
    return picture(LEFT + WIDTH + 24, 24 + LANE_HEIGHT * 4 + 56, "Two instances at different versions", parts)


def _bar(span: Span, y: float, scale: float, trained: Iterator[tuple[int, list[int]]]) -> list[str]:
    x, width = LEFT + span.start * scale, span.seconds * scale
    if span.kind == GENERATING and span.version is not None:
        colour = VERSION_COLOURS[span.version % len(VERSION_COLOURS)]
        bar = box(x, y, width, BAR_HEIGHT, GENERATING, radius=2, colour=colour)
        return [bar, text(x + width / 2, y + 17, f"v{span.version}", "small on middle")] if width > 20 else [bar]
    if span.kind == TRAINING:
        version, staleness = next(trained)
        middle, ages = x + width / 2, ", ".join(str(age) for age in staleness)
        words = text(middle, y + 17, f"v{version} to v{version + 1}", "small on middle")
        return [box(x, y, width - 1, BAR_HEIGHT, TRAINING, radius=2), words, text(middle, y + 39, ages, "small middle")]
    kinds = {LOADING: "loading", PUBLISHING: "publishing"}
    return [box(x, y, width, BAR_HEIGHT, kinds[span.kind], radius=2)] if span.kind in kinds else []


def _axis(end: float, scale: float, y: float) -> list[str]:
    parts = []
    for second in range(0, int(end) + 1, 5):
        x = LEFT + second * scale
        parts.append(f'<line x1="{x:.1f}" y1="16" x2="{x:.1f}" y2="{y:.1f}" class="line"/>')
        parts.append(text(x, y + 16, f"{second} s", "small soft middle"))
    return parts


def versions_differ(lanes: list[Lane]) -> list[tuple[float, float]]:
    """When two instances generate with different versions."""
    first, second = ([span for span in lane.spans if span.kind == GENERATING] for lane in lanes[:2])
    pairs = [(a, b) for a in first for b in second if a.version != b.version]
    overlaps = [(max(a.start, b.start), min(a.end, b.end)) for a, b in pairs]
    return sorted((start, end) for start, end in overlaps if start < end)


def pictures() -> dict[str, str]:
    """By file name."""
    return {"staleness-buffers.svg": buffers_picture(scenes()), "staleness-timeline.svg": timeline_picture()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().into
    for name, drawn in pictures().items():
        (folder / name).write_text(drawn)


if __name__ == "__main__":
    main()
