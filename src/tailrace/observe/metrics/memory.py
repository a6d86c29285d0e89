"""What metrics remember of a run between two journal entries, beside what the shared fold remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.ids import InstanceId, TrajectoryId
from tailrace.observe.metrics.natural_lengths import LengthSample
from tailrace.observe.shared_fold.records import Response


@dataclass(slots=True, kw_only=True)
class Clock:
    """When things happened in the current step."""

    step_began: float = 0.0
    first_submit: float | None = None
    last_finish: float = 0.0
    last_score: float = 0.0
    """When a training response was last scored before the step was asked for."""
    publish_s: float = 0.0
    pull_s: float = 0.0
    save_s: float = 0.0
    busy_s: dict[InstanceId, float] = field(default_factory=dict)
    """Seconds each instance had work."""
    num_tokens: int = 0
    """Tokens generated since the step before."""


@dataclass(slots=True, kw_only=True)
class Memory:
    clock: Clock = field(default_factory=Clock)
    busy_since: dict[InstanceId, float] = field(default_factory=dict)
    dropped: dict[TrajectoryId, Response] = field(default_factory=dict)
    """Scored responses of groups that were filtered or dropped since the step before."""
    num_dropped: int = 0
    """Number of groups filtered or dropped since the step before, scored or not."""
    lengths: list[LengthSample] = field(default_factory=lambda: [LengthSample()])
    """One sample per step, the current one last; as many as an estimate covers."""
    num_instances_lost: int = 0
    tokens_total: int = 0

    def stop_busy(self, instance: InstanceId, now: float) -> None:
        """The instance has no work any more."""
        if (since := self.busy_since.pop(instance, None)) is not None:
            self.count_busy(instance, since, now)

    def count_busy(self, instance: InstanceId, since: float, now: float) -> None:
        clock = self.clock
        clock.busy_s[instance] = clock.busy_s.get(instance, 0.0) + now - max(since, clock.step_began)
