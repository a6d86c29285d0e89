"""Every schedule on every length distribution of `scenarios/length_grid.toml`, and the orderings asked of them.

Speculation is compared by rollout seconds, averaged over whole periods of short rounds and a long one, as the paper
does (RollPacker, figure 12); gains are in optimizer steps per second. Speculation is looked at in the mean over two
sets of lengths: the longest few responses decide, and one set alone moves a gain by up to 40 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from simulated_runs import Figures, Run, grid, rollout_s

TAIL_BASE, PARTIAL_BASE = "rollpacker_14b_16k", "april_8b_grpo"
STEPS = {"prompts-only-1.5": 6}
"""Whole periods: 1.5 has a long round after every two short ones, 1.25 after every four."""
PERIOD = 5
SEEDS = {TAIL_BASE: 2}
"""Sets of lengths, where more than one: what is left of a tail that speculation cuts is up to few responses."""
JOINT = "tail-batching"
ALONE = ("prompts-only-1.25", "prompts-only-1.5", "responses-only-1.25", "responses-only-1.5")
TAIL, PARTIAL = ("sync", JOINT, *ALONE), ("sync", "active-partial")
TIE = 0.01
"""Gains closer than this are equal: at the longer cap hardly any response is longer."""
MOST_LOST = 0.03


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All schedules on one distribution under one cap."""

    lengths: str
    cap: int
    is_long_tailed: bool
    tail: Mapping[str, Sequence[Figures]]
    """Of every seed."""
    partial: Mapping[str, Sequence[Figures]]

    @property
    def name(self) -> str:
        return f"{self.lengths}/{self.cap // 1024}k"

    def gain(self, schedule: str) -> float:
        by = self.tail if schedule in self.tail else self.partial
        return _mean(by["sync"], _step_s) / _mean(by[schedule], _step_s)

    def rollout(self, schedule: str) -> float:
        """Rollout seconds over those of `sync`."""
        return _mean(self.tail[schedule], rollout_s) / _mean(self.tail["sync"], rollout_s)

    def throughput(self) -> float:
        return _mean(self.partial["active-partial"], _tokens_per_s) / _mean(self.partial["sync"], _tokens_per_s)


def _mean(figures: Sequence[Figures], of: Callable[[Figures], float]) -> float:
    return fmean(map(of, figures))


def _step_s(figures: Figures) -> float:
    return figures.seconds_per_step


def _tokens_per_s(figures: Figures) -> float:
    return figures.rollout_tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Ordering:
    name: str
    num_checks: int
    failures: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.num_checks > 0 and not self.failures

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}

    def line(self) -> str:
        failures = f"; not so: {', '.join(self.failures)}" if self.failures else ""
        return f"{'holds' if self.holds else 'FAILS'}  {self.name} ({self.num_checks} checks{failures})"


def _places() -> Iterator[tuple[str, int, bool]]:
    caps = grid().caps
    yield from ((entry.name, cap, True) for entry in grid().long_tailed for cap in caps)
    # No response of these comes near any cap: one is as good as another.
    yield from ((entry.name, caps[0], False) for entry in grid().not_long_tailed)


def runs() -> list[Run]:
    bases = ((TAIL_BASE, TAIL), (PARTIAL_BASE, PARTIAL))
    return [
        run
        for lengths, cap, _ in _places()
        for base, schedules in bases
        for schedule in schedules
        for run in _of(base, schedule, lengths, cap)
    ]


def _of(base: str, schedule: str, lengths: str, cap: int) -> list[Run]:
    steps = STEPS.get(schedule, PERIOD)
    return [
        Run(scenario=base, schedule=schedule, steps=steps, lengths=lengths, cap=cap, seed=seed)
        for seed in range(SEEDS.get(base, 1))
    ]


def cells(found: Mapping[Run, Figures]) -> list[Cell]:
    made = []
    for lengths, cap, is_long_tailed in _places():
        tail = {name: [found[run] for run in _of(TAIL_BASE, name, lengths, cap)] for name in TAIL}
        partial = {name: [found[run] for run in _of(PARTIAL_BASE, name, lengths, cap)] for name in PARTIAL}
        made.append(Cell(lengths=lengths, cap=cap, is_long_tailed=is_long_tailed, tail=tail, partial=partial))
    return made


def table(found: Mapping[Run, Figures]) -> list[dict[str, Any]]:
    return [
        {
            "lengths": cell.lengths,
            "cap": cell.cap,
            "rollout": {name: round(cell.rollout(name), 3) for name in (JOINT, *ALONE)},
            "gain": {name: round(cell.gain(name), 3) for name in (JOINT, *ALONE, "active-partial")},
            "throughput of active-partial": round(cell.throughput(), 3),
        }
        for cell in cells(found)
    ]


def lines(rows: list[dict[str, Any]]) -> list[str]:
    names = (JOINT, *ALONE)
    found = [
        "rollout seconds over those of sync; gains in steps per second over sync",
        f"{'lengths':10} {'cap':>6}  "
        + "  ".join(f"{name:>19}" for name in names)
        + "   tail gain  partial gain  tok/s",
    ]
    for row in rows:
        rollouts = "  ".join(f"{row['rollout'][name]:19.2f}" for name in names)
        gains = f"{row['gain'][JOINT]:12.2f}  {row['gain']['active-partial']:12.2f}"
        found.append(
            f"{row['lengths']:10} {row['cap']:>6}  {rollouts}{gains}  {row['throughput of active-partial']:5.2f}"
        )
    return found


def orderings(found: Mapping[Run, Figures]) -> list[Ordering]:
    made = cells(found)
    tailed = [cell for cell in made if cell.is_long_tailed]
    longest = [cell for cell in tailed if cell.cap == max(grid().caps)]
    return [
        ordering("four short rounds to a long one", ((c.name, all(map(_is_four_to_one, c.tail[JOINT]))) for c in made)),
        ordering("the gain grows with the cap", _grows(tailed)),
        ordering(
            "joint 1.25 beats prompts alone and responses alone",
            ((f"{c.name} {n}", c.rollout(JOINT) < c.rollout(n)) for c in tailed for n in ALONE),
        ),
        ordering(
            "prompts alone: 1.5 is worse than 1.25 at the longest cap",
            ((c.name, c.rollout("prompts-only-1.5") > c.rollout("prompts-only-1.25")) for c in longest),
        ),
        ordering(
            "responses alone: 1.25 saves less than 1.5, and less than half of what joint 1.25 saves",
            ((c.name, _does_little(c)) for c in tailed),
        ),
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


def ordering(name: str, checks: Iterator[tuple[str, bool]]) -> Ordering:
    done = list(checks)
    return Ordering(name=name, num_checks=len(done), failures=tuple(where for where, holds in done if not holds))


def _is_four_to_one(figures: Figures) -> bool:
    return figures.rounds_short == 4 * figures.rounds_long


def _grows(tailed: list[Cell]) -> Iterator[tuple[str, bool]]:
    """From each cap to the next; ties count as growth."""
    for name in dict.fromkeys(cell.lengths for cell in tailed):
        by_cap = sorted((cell for cell in tailed if cell.lengths == name), key=lambda cell: cell.cap)
        for shorter, longer in pairwise(by_cap):
            gains = shorter.gain(JOINT), longer.gain(JOINT)
            yield f"{longer.name} {gains[0]:.2f} -> {gains[1]:.2f}", gains[1] > gains[0] * (1 - TIE)


def _does_little(cell: Cell) -> bool:
    saved = {name: 1 - cell.rollout(name) for name in (JOINT, "responses-only-1.25", "responses-only-1.5")}
    little = saved["responses-only-1.25"]
    return little < saved["responses-only-1.5"] and little < saved[JOINT] / 2
