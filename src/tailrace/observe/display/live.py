"""The live display of a run on a terminal, drawn with rich: a few changing lines below the sentences printed so far.

``render`` depends only on what was fed; nothing here reads a clock. Drawing happens at most ``MAX_HZ`` times a second
of run time, so a busy run spends its time elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tailrace.core import commands as do
from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.observe.display.progress import Progress, clock, step_phases
from tailrace.observe.metrics.rows import Row
from tailrace.observe.shared_fold.run_fold import RunFold

MAX_HZ = 4.0
_BARS = "".join(chr(0x2581 + height) for height in range(8))
_LOAD_WIDTH, _SPARK_WIDTH, _MAX_WAITS, _MAX_INSTANCES = 20, 40, 3, 16


def sparkline(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """The newest ``width`` values as bars, scaled between their minimum and maximum; equal values are low bars."""
    shown = list(values)[-width:]
    low, span = min(shown, default=0.0), max(shown, default=0.0) - min(shown, default=0.0)
    return "".join(_BARS[round(7 * (value - low) / span) if span > 0 else 0] for value in shown)


class LiveDisplay:
    """Owns the last lines of the screen until ``close``."""

    def __init__(self, max_steps: int, console: Console) -> None:
        self._max_steps, self._progress = max_steps, Progress(max_steps)
        self._step: Row = {}
        self._left_s: float | None = None
        self._rewards: list[float] = []
        self._scores: dict[str, list[float]] = {}
        self._run = RunFold()
        self._is_paused = False
        """No entry has come since the run was resumed: the instances of before are gone."""
        self._most_running = 1
        self._waits: tuple[Wait, ...] = ()
        self._now, self._drawn_at = 0.0, float("-inf")
        self._live = Live(console=console, auto_refresh=False, get_renderable=self.render, transient=False)
        self._live.start()

    @classmethod
    def on(cls, max_steps: int, stream: TextIO) -> LiveDisplay:
        return cls(max_steps, Console(file=stream))

    def say(self, line: str) -> None:
        self._live.console.print(escape(line), highlight=False)
        self._draw()

    def begin(self, run: RunFold, rows: Sequence[Row]) -> None:
        self._run, self._now, self._is_paused = run, run.state.now, True
        for row in rows:
            self._take(row)
        self._draw()

    def entry(self, entry: Entry) -> None:
        self._now, self._is_paused = entry.now, False
        for news in self._run.feed(entry):
            if isinstance(news.message, do.Submit):
                num_running = len(self._run.instance(news.message.instance).running)
                self._most_running = max(self._most_running, num_running)
        if self._now - self._drawn_at >= 1 / MAX_HZ:
            self._draw()

    def row(self, row: Row) -> None:
        self._take(row)
        self._draw()

    def _take(self, row: Row) -> None:
        if "reward/mean" in row:
            self._step, self._left_s = row, self._progress.left_s(row)
            self._rewards.append(row["reward/mean"])
        for name, value in row.items():
            if name.startswith("eval/") and "/avg@" in name:
                self._scores.setdefault(name.removeprefix("eval/"), []).append(value)

    def waits(self, waits: Sequence[Wait], now: float) -> None:
        self._waits, self._now = tuple(waits), now
        self._draw()

    def close(self) -> None:
        """The last picture stays on the screen, without waits."""
        self._waits = ()
        try:
            self._draw()
        finally:  # whatever cannot be drawn, the terminal is given back
            self._live.stop()

    def _draw(self) -> None:
        self._drawn_at = self._now
        self._live.refresh()

    def render(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        self._add_steps(grid)
        self._add_lengths(grid)
        self._add_instances(grid)
        for wait in sorted(self._waits, key=lambda wait: wait.since)[:_MAX_WAITS]:
            age = max(self._now - wait.since, 0.0)
            style = "bold red" if age >= wait.limit_s / 2 else ""
            grid.add_row("waiting", Text(f"{wait.what}: {age:.0f} s (limit {wait.limit_s:.0f} s)", style=style))
        return Panel(grid, title="tailrace", title_align="left", border_style="dim")

    def _add_steps(self, grid: Table) -> None:
        done = self._step.get("step", 0)
        line = Table.grid(padding=(0, 2))
        left = "" if self._left_s is None else f"ETA {clock(self._left_s)}"
        line.add_row(f"{done}/{self._max_steps}", ProgressBar(total=self._max_steps, completed=done, width=40), left)
        grid.add_row("step", line)
        if self._rewards:
            grid.add_row("reward", f"{self._rewards[-1]:.3f}  [green]{sparkline(self._rewards)}[/]")
        for name, scores in self._scores.items():
            grid.add_row(escape(name), f"{scores[-1]:.3f}  [cyan]{sparkline(scores)}[/]")

    def _add_lengths(self, grid: Table) -> None:
        if not (row := self._step):
            return
        lengths = "  ".join(f"{name} {row[f'response_length/{name}']}" for name in ("p50", "p95", "max"))
        grid.add_row("length", f"{lengths}  clipped {row['response_length/clip_ratio']:.1%}")
        speed = f"{row['perf/tokens_per_s']:,.0f} tok/s  {row['timing_s/step']:.2f} s a step ({step_phases(row)})"
        if eval_s := row.get("timing_s/eval"):
            speed += f"  eval {eval_s:.2f} s"
        grid.add_row("speed", speed)
        failed = sum(row[f"reward/num_{name}"] for name in ("error", "timeout", "crash", "invalid"))
        if failed:
            grid.add_row("rewards", f"[bold red]{failed} failed in the last step[/]")

    def _add_instances(self, grid: Table) -> None:
        if self._is_paused:
            return
        up = {number: instance for number, instance in self._run.state.instances.items() if instance.is_up}
        for number in sorted(up)[:_MAX_INSTANCES]:
            count = len(up[number].running)
            bar = "#" * round(_LOAD_WIDTH * count / self._most_running)
            state = f"{count} responses" if count else "idle"
            grid.add_row(f"instance {number}", Text(f"{bar:<{_LOAD_WIDTH}}  {state}"))
        if len(up) > _MAX_INSTANCES:
            grid.add_row("", f"and {len(up) - _MAX_INSTANCES} more instances")
