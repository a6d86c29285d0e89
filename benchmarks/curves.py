"""Curves as an SVG picture, for figures in the docs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b", "#e377c2")
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 20, 52
"""Margins; the names of the curves are in the right one."""

Points = Sequence[tuple[float, float]]


def draw(curves: Mapping[str, Points], *, x: str, y: str) -> str:
    """``x`` and ``y``: titles of the axes. Both axes begin at 0."""
    most_x = _round_up(max(point[0] for points in curves.values() for point in points))
    most_y = _round_up(max(point[1] for points in curves.values() for point in points))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = LEFT + point[0] / most_x * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - point[1] / most_y * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        (right, floor), (left, level) = place((share * most_x, 0)), place((0, share * most_y))
        parts += [
            f'<line x1="{left}" y1="{level}" x2="{WIDTH - RIGHT}" y2="{level}" stroke="#ddd"/>',
            _text(left - 8, level + 4, f"{share * most_y:g}", anchor="end"),
            _text(right, floor + 18, f"{share * most_x:g}", anchor="middle"),
        ]
    parts += [
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x, anchor="middle"),
        f'<g transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">{_text(0, 0, y, anchor="middle")}</g>',
    ]
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{across},{up}" for across, up in map(place, points))
        parts += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<rect x="{WIDTH - RIGHT + 12}" y="{TOP + 20 * number}" width="14" height="4" fill="{colour}"/>',
            _text(WIDTH - RIGHT + 32, TOP + 20 * number + 6, name),
        ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, *, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="13" fill="#333" text-anchor="{anchor}">{words}</text>'


def _round_up(value: float) -> float:
    """The next larger of 1, 2, 4, 6, 8 and 10 times a power of ten, so that quarters of it are short numbers."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)
