"""A wait: what the run waits for, since when, and until when. Every wait has a name, a start and a limit."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thing that the run waits for."""

    what: str
    """A phrase that completes "waiting for ..."."""
    since: float
    limit_s: float
    instance: InstanceId | None = None
    """Instance to restart when the limit is exceeded."""
    is_trainer: bool = False
    """Whether the trainer is restarted when the limit is exceeded. If neither it nor an instance is, the run fails."""

    @property
    def until(self) -> float:
        return self.since + self.limit_s
