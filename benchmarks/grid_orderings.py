"""The orderings that the papers claim, counted on the grid of length distributions: in how many cells each holds.

What is said of speculation is looked for twice: in the mean over the long-tailed distributions, cap by cap, and on
every one of them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from simulated_grid import ALONE, JOINT, Cell, Compared, over_grid
from simulated_runs import Figures, grid

TIE = 0.01
"""Gains closer than this are equal: at the longer cap hardly any response is longer."""
MOST_LOST = 0.03


@dataclass(frozen=True, kw_only=True)
class Ordering:
    name: str
    num_checks: int
    failures: tuple[str, ...]

    @property
    def num_held(self) -> int:
        return self.num_checks - len(self.failures)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "held": self.num_held, "of": self.num_checks, "not_in": ", ".join(self.failures)}

    def line(self) -> str:
        failures = f"; not in {', '.join(self.failures)}" if self.failures else ""
        return f"{self.num_held:3} of {self.num_checks:3}  {self.name}{failures}"


def orderings(made: Sequence[Cell]) -> list[Ordering]:
    tailed = [cell for cell in made if cell.is_long_tailed]
    return [
        ordering("four short rounds to a long one", ((c.name, all(map(_is_four_to_one, c.tail[JOINT]))) for c in made)),
        *_speculation("over the grid", over_grid(made)),
        *_speculation("on every distribution", tailed),
        ordering(
            "active partial gains, in steps and in tokens per second",
            ((c.name, c.gain("active-partial") > 1 and c.throughput() > 1) for c in tailed),
        ),
        ordering(
            f"without a long tail nothing loses more than {MOST_LOST:.0%}",
            (
                (f"{c.name} {n} {c.gain(n):.3f}", c.gain(n) >= 1 - MOST_LOST)
                for c in made
                if not c.is_long_tailed
                for n in (JOINT, *ALONE, "active-partial")
            ),
        ),
    ]


def _speculation(where: str, tailed: Sequence[Compared]) -> list[Ordering]:
    longest = [c for c in tailed if c.cap == max(grid().caps)]
    return [
        ordering(f"{where}: the gain grows with the cap", _grows(tailed)),
        ordering(
            f"{where}: joint 1.25 beats prompts alone and responses alone",
            ((f"{c.name} {n}", c.rollout(JOINT) < c.rollout(n)) for c in tailed for n in ALONE),
        ),
        ordering(
            f"{where}: prompts alone, 1.5 is worse than 1.25 at the longest cap",
            ((c.name, c.rollout("prompts-only-1.5") > c.rollout("prompts-only-1.25")) for c in longest),
        ),
        ordering(
            f"{where}: responses alone, 1.25 saves less than 1.5, and less than half of what joint 1.25 saves",
            ((c.name, _does_little(c)) for c in tailed),
        ),
    ]


def ordering(name: str, checks: Iterator[tuple[str, bool]]) -> Ordering:
    done = list(checks)
    return Ordering(name=name, num_checks=len(done), failures=tuple(where for where, holds in done if not holds))


def _is_four_to_one(figures: Figures) -> bool:
    return figures.rounds_short == 4 * figures.rounds_long


def _grows(tailed: Sequence[Compared]) -> Iterator[tuple[str, bool]]:
    """From each cap to the next; ties count as growth."""
    for name in dict.fromkeys(cell.lengths for cell in tailed):
        by_cap = sorted((cell for cell in tailed if cell.lengths == name), key=lambda cell: cell.cap)
        for shorter, longer in pairwise(by_cap):
            gains = shorter.gain(JOINT), longer.gain(JOINT)
            yield f"{longer.name} {gains[0]:.2f} -> {gains[1]:.2f}", gains[1] > gains[0] * (1 - TIE)


def _does_little(cell: Compared) -> bool:
    saved = {name: 1 - cell.rollout(name) for name in (JOINT, "responses-only-1.25", "responses-only-1.5")}
    little = saved["responses-only-1.25"]
    return little < saved["responses-only-1.5"] and little < saved[JOINT] / 2
