"""Everything the core remembers, in one place: what a snapshot holds and ``check`` validates.

Only live groups are here; a group leaves when it is trained, evaluated or dropped, so the state and its
snapshot stay small however long a run lasts. Indexes (``pending``, ``generated``, ...) repeat what the phases
say, so that no rule has to scan; ``check`` holds them to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.core.errors import UnknownSubject
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.core.schedule import Limits, Schedule
from tailrace.core.trajectory import Trajectory, TrajectoryPhase


@dataclass(slots=True, kw_only=True)
class Pending:
    """Something asked for once and not answered yet."""

    since: float
    version: Version


@dataclass(slots=True, kw_only=True)
class State:
    version: Version = Version(0)
    """Completed optimizer steps."""
    published: Version = Version(0)
    """The newest version instances can pull. Version 0 is what they start with."""
    cursor: tuple[int, int] = (0, 0)
    """(epoch, offset) of the training source."""
    groups: dict[GroupId, Group] = field(default_factory=dict)
    instances: dict[InstanceId, Instance] = field(default_factory=dict)

    pending: dict[TrajectoryId, None] = field(default_factory=dict)
    generated: dict[TrajectoryId, None] = field(default_factory=dict)
    scoring: dict[TrajectoryId, None] = field(default_factory=dict)
    complete: dict[GroupId, None] = field(default_factory=dict)
    """Training groups ready for the next step."""
    num_train_groups: int = 0
    num_unfinished: int = 0
    """Training trajectories that are pending or running."""

    prompts: dict[str, Pending] = field(default_factory=dict)
    """Sources that were asked for prompts."""
    trainer: Version | None = None
    """The version the trainer holds; None until it has started."""
    is_trainer_asked: bool = False
    trainer_heard_at: float = 0.0
    limits: Limits = Limits()
    training: Pending | None = None
    publishing: Pending | None = None
    saving: Pending | None = None
    save_due: Version | None = None
    """A checkpoint that is wanted; stays until it is on disk."""
    eval_done: Version = Version(-1)
    """The newest version whose evaluation is complete (or was not due)."""
    eval_open: dict[str, int] = field(default_factory=dict)
    """Evaluation sets in progress: groups that are not complete yet."""
    scored_at: float = 0.0
    """When a reward last came back or was first asked for."""
    num_dropped_in_a_row: int = 0
    num_useless_in_a_row: int = 0
    """Dropped or filtered."""
    last_reward_failure: str = ""
    timer_at: float | None = None
    verdict: str | None = None
    """Why the run is over; None while it goes on."""
    has_begun: bool = False

    @classmethod
    def initial(cls, schedule: Schedule) -> State:
        ids = [InstanceId(number) for number in range(schedule.num_instances)]
        return cls(instances={i: Instance(id=i) for i in ids}, limits=schedule.limits)

    @property
    def is_trainer_ready(self) -> bool:
        return self.trainer == self.version

    def trajectory(self, trajectory: TrajectoryId) -> Trajectory:
        try:
            return self.groups[trajectory.group].members[trajectory]
        except KeyError:
            raise UnknownSubject(f"no live trajectory {trajectory}") from None

    def instance(self, instance: InstanceId) -> Instance:
        try:
            return self.instances[instance]
        except KeyError:
            raise UnknownSubject(f"no instance {instance}") from None

    def trajectories(self) -> Iterator[Trajectory]:
        for group in self.groups.values():
            yield from group.members.values()

    def check(self, schedule: Schedule) -> None:
        """Raise AssertionError if two collections disagree. Run after every event in tests."""
        for group in self.groups.values():
            group.check()
        for instance in self.instances.values():
            instance.check()
        self._check_indexes(schedule)
        self._check_bounds(schedule)

    def _check_indexes(self, schedule: Schedule) -> None:
        by_phase: dict[TrajectoryPhase, set[TrajectoryId]] = {phase: set() for phase in TrajectoryPhase}
        for trajectory in self.trajectories():
            by_phase[trajectory.phase].add(trajectory.id)
        assert set(self.pending) == by_phase[TrajectoryPhase.PENDING]
        assert set(self.generated) == by_phase[TrajectoryPhase.GENERATED]
        assert set(self.scoring) == by_phase[TrajectoryPhase.SCORING]
        running = {t: i.id for i in self.instances.values() for t in i.running}
        assert set(running) == by_phase[TrajectoryPhase.RUNNING]
        assert all(self.trajectory(t).instance == instance for t, instance in running.items())
        unfinished = by_phase[TrajectoryPhase.PENDING] | by_phase[TrajectoryPhase.RUNNING]
        assert self.num_unfinished == sum(t.group.source == schedule.train_source for t in unfinished)

    def _check_bounds(self, schedule: Schedule) -> None:
        train = [g for g in self.groups.values() if g.id.source == schedule.train_source]
        assert len(train) == self.num_train_groups <= schedule.batch_size
        complete = {g.id for g in train if g.phase is GroupPhase.COMPLETE}
        assert set(self.complete) == complete
        is_training = any(g.phase is GroupPhase.TRAINING for g in train)
        assert is_training == (self.training is not None)
        assert self.published <= self.version <= schedule.max_steps
        for group in self.groups.values():
            assert group.version == self.version, f"{group.id} was opened at v{group.version}, now v{self.version}"
            is_live = group.phase in (GroupPhase.OPEN, GroupPhase.COMPLETE, GroupPhase.TRAINING)
            assert is_live, f"{group.id} is {group.phase.value} and still here"
        for instance in self.instances.values():
            assert instance.phase is InstancePhase.ABSENT or instance.version <= self.published
        for name, num_open in self.eval_open.items():
            groups = [g for g in self.groups.values() if g.id.source == name and g.phase is GroupPhase.OPEN]
            assert len(groups) == num_open or name in self.prompts
