"""What all charts of the report have in common: a lean bokeh figure with fixed ranges under a caption of the page.

A chart must be on the screen soon after the page is opened. So title and key are text of the page, there is no toolbar,
and a chart has as few renderers as it can. Colours of text, axes and grids are left to the page's style sheet, which
bokeh reads (`--bk-...`) and which knows whether the page is shown light or dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models import BasicTickFormatter, HoverTool
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

Range = tuple[float, float]
HEIGHT_PX, LEFT_PX = 216, 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One entry of a chart's key."""

    words: str
    colour: str
    shape: str = "line"
    """`line`, `dashed` or `area`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    title: str
    key: tuple[Mark, ...]
    figure: figure


def blank(x_title: str, x: Range, y: Range, *, height: int = HEIGHT_PX, left: int = LEFT_PX, tools: str = "") -> figure:
    """Nothing but axes and a grid."""
    chart = figure(
        height=height,
        sizing_mode="stretch_width",
        tools=tools,
        toolbar_location=None,
        x_axis_label=x_title,
        x_range=x,
        y_range=y,
        min_border_left=left,
        min_border_right=14,
        background_fill_color=None,
        border_fill_color=None,
    )
    chart.axis.minor_tick_line_color = None
    chart.axis.major_tick_in = 0
    chart.axis.formatter = BasicTickFormatter(use_scientific=False)
    return chart


def over_steps(x: Range, y: Range) -> figure:
    """A figure whose x axis counts whole optimizer steps."""
    chart = blank("step", x, y)
    chart.xaxis.ticker.min_interval = 1
    chart.yaxis.ticker.desired_num_ticks = 5
    return chart


def explain(chart: figure, renderer: GlyphRenderer[Any], tips: Sequence[tuple[str, str]], *, mode: str) -> None:
    """Show numbers under the pointer; with ``vline`` also above and below a point."""
    chart.add_tools(HoverTool(renderers=[renderer], tooltips=list(tips), mode=mode, show_arrow=False, visible=False))


def roomy(values: Sequence[float]) -> Range:
    """A range a little larger than the values, so that no line runs along an edge."""
    low, high = min(values), max(values)
    edge = 0.06 * (high - low) or 0.5
    return low - edge, high + edge
