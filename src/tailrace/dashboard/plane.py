"""A chart as inline SVG: drawn by the browser without any script, coloured by the page's style sheet.

Everything inside a plane is in its own units, 0 .. 1000 from left to right and 0 .. 100 from top to bottom; the page
stretches that square to whatever room there is. Labels are the page's text beside it, so they are never stretched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

WIDTH, HEIGHT = 1000, 100
Range = tuple[float, float]
Box = tuple[float, float, float, float]
"""Left, right, bottom, top, in the units of the data."""
Tip = tuple[float, float, float, float, str]
"""Left, right, top, bottom in units of the plane, and what to say there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry of a chart's key."""

    words: str
    colour: str
    shape: str = "line"
    """`line`, `dashed` or `area`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    percent: float
    """From the left, or from the top."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    key: tuple[Mark, ...]
    shapes: Markup
    x_title: str
    x_labels: tuple[Label, ...]
    y_labels: tuple[Label, ...]
    tips: tuple[Tip, ...]
    height_px: int = 180
    zoom: Range | None = None
    """The data at both ends of the x axis, where the reader may look closer."""


class Plane:
    """Collects shapes; the first is the lowest."""

    def __init__(self, x: Range, y: Range) -> None:
        self.x_range, self.y_range = x, y
        self.tips: list[Tip] = []
        self._shapes: list[str] = []

    def x(self, value: float) -> float:
        return round(WIDTH * _share(value, self.x_range), 2)

    def y(self, value: float) -> float:
        return round(HEIGHT * (1 - _share(value, self.y_range)), 2)

    def line(self, xs: Sequence[float], ys: Sequence[float], colour: str, *, is_dashed: bool = False) -> None:
        path = "M" + "L".join(self._points(xs, ys))
        self._shapes.append(f'<path class="{"line dashed" if is_dashed else "line"}" stroke="{colour}" d="{path}"/>')

    def dots(self, xs: Sequence[float], ys: Sequence[float], colour: str) -> None:
        """Lines without length and with round ends: circles would be stretched with the plane."""
        path = "".join(f"M{point}h0" for point in self._points(xs, ys))
        self._shapes.append(f'<path class="dots" stroke="{colour}" d="{path}"/>')

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str) -> None:
        there, back = self._points(xs, high), reversed(self._points(xs, low))
        self._shapes.append(f'<path fill="{colour}" d="M{"L".join([*there, *back])}Z"/>')

    def boxes(self, boxes: Iterable[Box], colour: str) -> None:
        """Any number of boxes of one colour are one shape."""
        parts = []
        for left, right, bottom, top in boxes:
            x, y = self.x(left), self.y(top)
            parts.append(f"M{x:g} {y:g}H{self.x(right):g}V{self.y(bottom):g}H{x:g}Z")
        self._shapes.append(f'<path class="boxes" fill="{colour}" d="{"".join(parts)}"/>')

    def say(self, box: Box, words: str) -> None:
        """What to show when the pointer is in the box."""
        left, right, bottom, top = box
        self.tips.append((self.x(left), self.x(right), self.y(top), self.y(bottom), words))

    def say_at(self, xs: Sequence[float], words: Sequence[str]) -> None:
        """The same for columns of full height, each reaching half way to its neighbours."""
        edges = [self.x_range[0], *((a + b) / 2 for a, b in pairwise(xs)), self.x_range[1]]
        for (left, right), text in zip(pairwise(edges), words, strict=True):
            self.say((left, right, *self.y_range), text)

    def over_steps(self, title: str, key: Sequence[Mark]) -> Chart:
        """The chart of a plane whose x axis counts optimizer steps."""
        xs, ys = ticks(*self.x_range, 10, least=1), ticks(*self.y_range, 5)
        return Chart(
            title=title,
            key=tuple(key),
            shapes=self.shapes(xs, ys),
            x_title="step",
            x_labels=tuple(Label(percent=100 * self.x(x) / WIDTH, words=f"{x:,g}") for x in xs),
            y_labels=tuple(Label(percent=100 * self.y(y) / HEIGHT, words=f"{y:,g}") for y in ys),
            tips=tuple(self.tips),
        )

    def shapes(self, xs: Sequence[float], ys: Sequence[float]) -> Markup:
        """The drawing over a grid at the given places."""
        grid = "".join(f"M{self.x(x):g} 0V{HEIGHT}" for x in xs) + "".join(f"M0 {self.y(y):g}H{WIDTH}" for y in ys)
        return Markup(f'<path class="grid" d="{grid}"/>' + "".join(self._shapes))

    def _points(self, xs: Sequence[float], ys: Sequence[float]) -> list[str]:
        return [f"{self.x(x):g} {self.y(y):g}" for x, y in zip(xs, ys, strict=True)]


def ticks(low: float, high: float, limit: int, *, least: float = 1e-9) -> list[float]:
    """About ``limit`` round numbers within the range, not nearer to each other than ``least``."""
    rough = max((high - low) / limit, least)
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= rough * 0.999)
    return [round(step * number, 10) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _share(value: float, limits: Range) -> float:
    low, high = limits
    return (value - low) / (high - low) if high != low else 0.5
