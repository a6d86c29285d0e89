"""What metrics remember of a run between two entries of its journal, and when they forget it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.core.ids import GroupId, InstanceId, TrajectoryId
from tailrace.observe.response_metrics import Done


@dataclass(slots=True, kw_only=True)
class Clock:
    """When things happened in the current step."""

    step_began: float = 0.0
    first_submit: float | None = None
    last_finish: float = 0.0
    last_score: float = 0.0
    """Of a training response, before the step was asked for."""
    publish_s: float = 0.0
    pull_s: float = 0.0
    save_s: float = 0.0
    busy_s: dict[InstanceId, float] = field(default_factory=dict)
    """Seconds each instance had work."""
    num_tokens: int = 0
    """Generated since the step before."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """All the fold remembers between entries."""

    responses: dict[TrajectoryId, Done] = field(default_factory=dict)
    first_version: dict[TrajectoryId, int] = field(default_factory=dict)
    """Of unfinished responses that have tokens."""
    running: dict[InstanceId, dict[TrajectoryId, None]] = field(default_factory=dict)
    aborting: dict[InstanceId, dict[TrajectoryId, None]] = field(default_factory=dict)
    """Given up, but the instance has not said so yet and may still report tokens of them."""
    busy_since: dict[InstanceId, float] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    lengths: dict[TrajectoryId, int] = field(default_factory=dict)
    """Tokens of unfinished responses."""
    left_out: dict[TrajectoryId, Done] = field(default_factory=dict)
    """Scored responses of groups that were filtered or dropped since the step before."""
    num_left_out: int = 0
    """Those groups, also where none of their responses was scored."""
    training: tuple[TrajectoryId, ...] = ()
    max_staleness: int | None = 0
    keeps_deferred_tokens: bool = False
    train_source: str = ""
    num_instances_lost: int = 0
    num_preemptions: dict[InstanceId, int] = field(default_factory=dict)
    tokens_total: int = 0

    def grow(self, trajectory: TrajectoryId, length: int) -> None:
        new = length - self.lengths.get(trajectory, 0)
        self.lengths[trajectory] = length
        self.tokens_total += new
        self.clock.num_tokens += new

    def leave(self, instance: InstanceId, trajectories: Sequence[TrajectoryId], now: float) -> None:
        """These do not run on the instance any more."""
        running = self.running.setdefault(instance, {})
        for trajectory in trajectories:
            running.pop(trajectory, None)
        if not running and (since := self.busy_since.pop(instance, None)) is not None:
            self.count_busy(instance, since, now)

    def count_busy(self, instance: InstanceId, since: float, now: float) -> None:
        clock = self.clock
        clock.busy_s[instance] = clock.busy_s.get(instance, 0.0) + now - max(since, clock.step_began)

    def leave_out(self, groups: set[GroupId]) -> None:
        self.num_left_out += len(groups)
        scored = {t: done for t, done in self.responses.items() if t.group in groups and done.outcome is not None}
        self.left_out |= scored
        self.forget_groups(groups)

    def forget(self, trajectory: TrajectoryId) -> None:
        for known in (self.responses, self.first_version, self.lengths):
            known.pop(trajectory, None)

    def forget_aborting(self, instance: InstanceId) -> None:
        """The instance is gone: it will not say any more that it has given them up."""
        for trajectory in self.aborting.pop(instance, ()):
            self.forget(trajectory)

    def forget_groups(self, groups: set[GroupId]) -> None:
        """What still runs for them is counted on until its end is reported."""
        running = {trajectory for each in self.running.values() for trajectory in each}
        for trajectory in [t for t in (*self.responses, *self.first_version, *self.lengths) if t.group in groups]:
            self.responses.pop(trajectory, None)
            self.first_version.pop(trajectory, None)
            if trajectory not in running:
                self.lengths.pop(trajectory, None)
