"""Everything the core remembers, in one place: what a snapshot holds and ``check`` validates.

Only live groups are here; a group leaves when it is trained, evaluated or given up, so the state and its snapshot
stay small however long a run lasts. Indexes (``pending``, ``generated``, ...) repeat what the phases say, so that no
rule has to scan; ``check`` (in ``invariants``) holds them to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.errors import UnknownSubject
from tailrace.core.fleet import Instance
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.core.ledger import Ledger
from tailrace.core.rounds import Round
from tailrace.core.schedule import Limits, Schedule
from tailrace.core.speculation import Search
from tailrace.core.trajectory import Trajectory


@dataclass(slots=True, kw_only=True)
class Pending:
    """Something asked for once and not answered yet."""

    since: float
    version: Version


@dataclass(slots=True, kw_only=True)
class State:
    ledger: Ledger
    """Which groups may begin and which batch they belong to. Its current batch is the next one to be collected."""
    version: Version = Version(0)
    """Completed optimizer steps."""
    published: Version = Version(0)
    """The newest version instances can pull. Version 0 is what they start with; -1: none, after a restart."""
    cursor: tuple[int, int] = (0, 0)
    """(epoch, offset) of the training source."""
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    costs: CostModel = NOTHING_KNOWN
    """Of an instance: those of the schedule until they are measured."""

    groups: dict[GroupId, Group] = field(default_factory=dict)
    round: Round | None = None
    """None between rounds, and always where there are none."""
    search: Search = field(default_factory=Search)
    """What rounds cost so far, where the over-provisioning is searched for."""
    queue: dict[GroupId, None] = field(default_factory=dict)
    """The long queue: deferred groups, the first deferred first."""
    held: dict[GroupId, str] = field(default_factory=dict)
    """Prompts (with their domains) whose earlier visit is not over yet: they come again when it is."""
    batches: list[tuple[GroupId, ...]] = field(default_factory=list)
    """Batches that are collected and not trained yet. The first is for the step after ``version``."""

    pending: dict[GroupId, int] = field(default_factory=dict)
    """How many members of an open group wait for an instance."""
    generated: dict[TrajectoryId, None] = field(default_factory=dict)
    scoring: dict[TrajectoryId, None] = field(default_factory=dict)
    finished: dict[GroupId, None] = field(default_factory=dict)
    """Training groups that became complete and were not looked at yet."""
    complete: dict[GroupId, None] = field(default_factory=dict)
    """Training groups that are ready for a batch."""
    surplus: dict[TrajectoryId, Trajectory] = field(default_factory=dict)
    """Responses that are not needed any more and were not let go yet."""
    left_out: dict[GroupId, GroupPhase] = field(default_factory=dict)
    """Groups that were filtered or dropped, and nobody was told yet."""
    cancelled: dict[TrajectoryId, None] = field(default_factory=dict)
    """Rewards nobody waits for; the news of their end is still to come."""
    num_train_groups: int = 0
    """Training groups that are open or complete."""

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
    num_failed_in_a_row: int = 0
    """Rewards of training responses."""
    last_reward_failure: str = ""
    timer_at: float | None = None
    planned_at: float | None = None
    """When the throughput-oriented strategies were last asked."""
    num_planned: int = 0
    """Responses that ran or waited then: what they cost."""
    plan_at: float | None = None
    """When they are to be asked again; None: when something happens."""
    stuck_since: float | None = None
    """When unfinished groups began to hold up the trainer, where that has a limit."""
    num_reliefs_in_a_row: int = 0
    """Times the limit was reached since the last batch."""
    verdict: str | None = None
    """Why the run is over; None while it goes on."""
    has_begun: bool = False

    @classmethod
    def initial(cls, schedule: Schedule) -> State:
        ids = [InstanceId(number) for number in range(schedule.num_instances)]
        return cls(
            ledger=Ledger(schedule.ledger),
            instances={i: Instance(id=i) for i in ids},
            costs=schedule.coordination.costs,
            limits=schedule.limits,
        )

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
        """Every response whose tokens may still be needed."""
        for group in self.groups.values():
            yield from group.members.values()
