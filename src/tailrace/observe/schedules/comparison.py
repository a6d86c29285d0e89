"""The figures of a run for a comparison of schedules, computed from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.core.journal import Entry
from tailrace.observe.account import Account
from tailrace.observe.prompts.conservation import conservation
from tailrace.observe.schedules import schedule_table
from tailrace.observe.schedules.schedule_account import ScheduleAccount, ScheduleFigures
from tailrace.observe.shared_fold.run_fold import RunFold


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
    """What became of the prompts that were issued, by state."""
    account: Account = field(repr=False)

    @classmethod
    def of(cls, schedule: str, entries: Sequence[Entry]) -> Compared:
        run = RunFold()
        account, costs = Account(run), ScheduleAccount(run)
        for entry in entries:
            for news in run.feed(entry):
                account.hear(news)
                costs.hear(news)
        return cls(schedule=schedule, figures=costs.figures(), prompts=conservation(entries), account=account)

    @property
    def rewards(self) -> tuple[float, float]:
        """Mean reward of the first and of the last step."""
        return self.account.steps[0]["reward/mean"], self.account.steps[-1]["reward/mean"]

    def accuracies(self) -> dict[str, tuple[float, float]]:
        """First and last accuracy of each evaluation set."""
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
    """A row of headings, then one row of costs per schedule."""
    return schedule_table.cells({result.schedule: result.figures for result in results})


def lessons(results: Sequence[Compared]) -> list[list[str]]:
    """A row of headings, then one row of rewards and accuracies per schedule."""
    headings = list(dict.fromkeys(heading for result in results for heading in result.learned))
    rows = [[result.schedule, *(result.learned.get(name, "-") for name in headings)] for result in results]
    return [["schedule", *headings], *rows]


def table(results: Sequence[Compared]) -> list[list[str]]:
    """Costs and lessons together, one row per schedule."""
    return [[*cost, *lesson[1:]] for cost, lesson in zip(costs(results), lessons(results), strict=True)]
