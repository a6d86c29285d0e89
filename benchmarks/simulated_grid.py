"""Every schedule on every length distribution of `scenarios/length_grid.toml`: what is run and how it compares.

Speculation is compared by rollout seconds, averaged over whole periods of short rounds and a long one, as the paper
does (RollPacker, figure 12); gains are in optimizer steps per second. Speculation is looked at in the mean over some
sets of lengths: the longest few responses decide, and one set alone moves a gain by up to 40 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

from simulated_runs import Figures, Run, grid, rollout_s

TAIL_BASE, PARTIAL_BASE = "rollpacker_14b_16k", "april_8b_grpo"
STEPS = {"prompts-only-1.5": 6}
"""Whole periods: 1.5 has a long round after every two short ones, 1.25 after every four."""
PERIOD = 5
JOINT = "tail-batching"
ALONE = ("prompts-only-1.25", "prompts-only-1.5", "responses-only-1.25", "responses-only-1.5")
TAIL, PARTIAL = ("sync", JOINT, *ALONE), ("sync", "active-partial")


class Compared(Protocol):
    """How schedules compare with `sync` under one cap."""

    @property
    def lengths(self) -> str: ...
    @property
    def cap(self) -> int: ...
    @property
    def name(self) -> str: ...
    def gain(self, schedule: str) -> float: ...
    def rollout(self, schedule: str) -> float: ...
    def throughput(self) -> float: ...


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
class Mean:
    """Of the long-tailed distributions under one cap, each of the same weight."""

    cap: int
    cells: Sequence[Cell]
    lengths: str = "mean"

    @property
    def name(self) -> str:
        return f"{self.cap // 1024}k"

    def gain(self, schedule: str) -> float:
        return fmean(cell.gain(schedule) for cell in self.cells)

    def rollout(self, schedule: str) -> float:
        return fmean(cell.rollout(schedule) for cell in self.cells)

    def throughput(self) -> float:
        return fmean(cell.throughput() for cell in self.cells)


def _places() -> Iterator[tuple[str, int, bool]]:
    caps = grid().caps
    yield from ((entry.name, cap, True) for entry in grid().long_tailed for cap in caps)
    # No response of these comes near any cap: one is as good as another.
    yield from ((entry.name, caps[0], False) for entry in grid().not_long_tailed)


def runs(sets: int) -> list[Run]:
    return [
        run
        for lengths, cap, _ in _places()
        for base, schedules in ((TAIL_BASE, TAIL), (PARTIAL_BASE, PARTIAL))
        for schedule in schedules
        for run in _of(base, schedule, lengths, cap, sets)
    ]


def _of(base: str, schedule: str, lengths: str, cap: int, sets: int) -> list[Run]:
    steps = STEPS.get(schedule, PERIOD)
    return [
        Run(scenario=base, schedule=schedule, steps=steps, lengths=lengths, cap=cap, seed=seed) for seed in range(sets)
    ]


def cells(found: Mapping[Run, Figures], sets: int) -> list[Cell]:
    made = []
    for lengths, cap, is_long_tailed in _places():
        tail = {name: [found[run] for run in _of(TAIL_BASE, name, lengths, cap, sets)] for name in TAIL}
        partial = {name: [found[run] for run in _of(PARTIAL_BASE, name, lengths, cap, sets)] for name in PARTIAL}
        made.append(Cell(lengths=lengths, cap=cap, is_long_tailed=is_long_tailed, tail=tail, partial=partial))
    return made


def over_grid(made: Sequence[Cell]) -> list[Mean]:
    """Of the long-tailed ones, cap by cap."""
    tailed = [cell for cell in made if cell.is_long_tailed]
    return [Mean(cap=cap, cells=[cell for cell in tailed if cell.cap == cap]) for cap in grid().caps]


def table(made: Sequence[Compared]) -> list[dict[str, Any]]:
    return [
        {
            "lengths": each.lengths,
            "cap": each.cap,
            "rollout": {name: round(each.rollout(name), 3) for name in (JOINT, *ALONE)},
            "gain": {name: round(each.gain(name), 3) for name in (JOINT, *ALONE, "active-partial")},
            "throughput of active-partial": round(each.throughput(), 3),
        }
        for each in made
    ]


def compact(made: Sequence[Cell]) -> dict[str, str]:
    """One line per cell: gains in steps per second over `sync`."""
    names = (JOINT, *ALONE, "active-partial")
    return {cell.name: ", ".join(f"{name} {cell.gain(name):.2f}" for name in names) for cell in made}


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
