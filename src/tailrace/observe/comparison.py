"""What a run says for itself when schedules are compared, from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.core.journal import Entry
from tailrace.observe import schedule_table
from tailrace.observe.account import Account
from tailrace.observe.conservation import conservation
from tailrace.observe.schedule_account import ScheduleAccount, ScheduleFigures


def figures_of(entries: Iterable[Entry]) -> ScheduleFigures:
    costs = ScheduleAccount()
    for entry in entries:
        costs.feed(entry)
    return costs.figures()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    schedule: str
    figures: ScheduleFigures
    prompts: dict[str, int]
    """What became of those that were issued."""
    account: Account = field(repr=False)

    @classmethod
    def of(cls, schedule: str, entries: Sequence[Entry]) -> Compared:
        account, costs = Account(), ScheduleAccount()
        for entry in entries:
            account.feed(entry)
            costs.feed(entry)
        return cls(schedule=schedule, figures=costs.figures(), prompts=conservation(entries), account=account)

    @property
    def rewards(self) -> tuple[float, float]:
        """Of the first and the last step."""
        return self.account.steps[0]["reward/mean"], self.account.steps[-1]["reward/mean"]

    def accuracies(self) -> dict[str, tuple[float, float]]:
        """Of each evaluation set, the first and the last."""
        names = [name for row in self.account.evaluations for name in row if "/avg@" in name]
        found = {name: [row[name] for row in self.account.evaluations if name in row] for name in dict.fromkeys(names)}
        return {name.split("/")[1]: (values[0], values[-1]) for name, values in found.items()}

    @property
    def learned(self) -> dict[str, str]:
        """Reward and accuracy in words, by heading."""
        pairs = {"reward": self.rewards, **self.accuracies()}
        return {name: f"{before:.3f} -> {after:.3f}" for name, (before, after) in pairs.items()}

    def to_dict(self, first: Compared) -> dict[str, Any]:
        begin, end = self.rewards
        return {
            "schedule": self.schedule,
            "speed_up": first.figures.seconds_per_step / max(self.figures.seconds_per_step, 1e-9),
            **self.figures.to_dict(),
            "reward_first": begin,
            "reward_last": end,
            "accuracy": {name: {"before": a, "after": b} for name, (a, b) in self.accuracies().items()},
            "prompts": self.prompts,
        }


def costs(results: Sequence[Compared]) -> list[list[str]]:
    """A row of headings, then what each schedule cost."""
    return schedule_table.cells({result.schedule: result.figures for result in results})


def lessons(results: Sequence[Compared]) -> list[list[str]]:
    """A row of headings, then what each schedule taught."""
    headings = list(dict.fromkeys(heading for result in results for heading in result.learned))
    rows = [[result.schedule, *(result.learned.get(name, "-") for name in headings)] for result in results]
    return [["schedule", *headings], *rows]


def table(results: Sequence[Compared]) -> list[list[str]]:
    """Both in one row per schedule."""
    return [[*cost, *lesson[1:]] for cost, lesson in zip(costs(results), lessons(results), strict=True)]
