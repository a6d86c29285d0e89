"""The evaluation room: which sets are being evaluated, and which version was evaluated last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.core.ids import GroupId, Version
from tailrace.core.requests import OpenRequest
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Limits, Schedule


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """State of the evaluation room."""

    done: Version = Version(-1)
    """Newest version whose evaluation is complete."""
    open: dict[str, int] = field(default_factory=dict)
    """Evaluation sets in progress, each with the number of groups that are not complete yet."""
    requested: dict[str, OpenRequest] = field(default_factory=dict)
    """Evaluation sets whose prompts were requested and have not arrived."""

    def is_over(self, schedule: Schedule, version: Version) -> bool:
        """Whether this version needs no evaluation, or its evaluation is complete."""
        return self.done == version or not schedule.is_eval_due(version)

    def group_completed(self, group: GroupId) -> None:
        self.open[group.source] -= 1

    def waits(self, limits: Limits) -> Iterator[Wait]:
        for source, request in self.requested.items():
            yield Wait(what=f"prompts of '{source}'", since=request.since, limit_s=limits.prompts_s)
