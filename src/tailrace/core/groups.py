"""The life of a group: one prompt and its responses, the unit of training.

    OPEN --> COMPLETE --> TRAINING --> TRAINED          (a training prompt)
     |           |  ^         |
     |           |  +---------+ (asked again after a restart)
     |           +---> EVALUATED                        (a prompt of an evaluation set)
     +---> DROPPED                                      (no member could be scored)
     +---> FILTERED                                     (dynamic sampling: all scores are equal)

A group is COMPLETE when every member is settled and at least one is scored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tailrace.core.errors import InvalidTransition
from tailrace.core.ids import GroupId, TrajectoryId, Version
from tailrace.core.trajectory import SETTLED, Trajectory, TrajectoryPhase


class GroupPhase(Enum):
    OPEN = "open"
    COMPLETE = "complete"
    TRAINING = "training"
    TRAINED = "trained"
    EVALUATED = "evaluated"
    DROPPED = "dropped"
    FILTERED = "filtered"


_P = GroupPhase
LEGAL: frozenset[tuple[GroupPhase, GroupPhase]] = frozenset(
    {
        (_P.OPEN, _P.COMPLETE),
        (_P.OPEN, _P.DROPPED),
        (_P.OPEN, _P.FILTERED),
        (_P.COMPLETE, _P.TRAINING),
        (_P.COMPLETE, _P.EVALUATED),
        (_P.TRAINING, _P.COMPLETE),
        (_P.TRAINING, _P.TRAINED),
    }
)


@dataclass(slots=True, kw_only=True)
class Group:
    """Owns its members."""

    id: GroupId
    version: Version
    """The version being trained or evaluated when the group was opened."""
    members: dict[TrajectoryId, Trajectory]
    num_unsettled: int
    phase: GroupPhase = GroupPhase.OPEN
    story: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, group: GroupId, *, version: Version, size: int) -> Group:
        ids = [TrajectoryId(group, member) for member in range(size)]
        return cls(id=group, version=version, members={i: Trajectory(id=i) for i in ids}, num_unsettled=size)

    def move(self, new: GroupPhase, *, now: float) -> None:
        if (self.phase, new) not in LEGAL:
            raise InvalidTransition(f"group {self.id}", self.phase.value, new.value, self.story)
        self.story.append(f"{now:.3f}  {self.phase.value} -> {new.value}")
        self.phase = new

    def settle(self, *, now: float, filters_equal: bool = False) -> None:
        """One more member is settled; the last one decides what becomes of the group."""
        self.num_unsettled -= 1
        if self.num_unsettled == 0:
            self.move(self._fate(filters_equal), now=now)

    def _fate(self, filters_equal: bool) -> GroupPhase:
        scores = {trajectory.score for trajectory in self.scored()}
        if not scores:
            return GroupPhase.DROPPED
        return GroupPhase.FILTERED if filters_equal and len(scores) == 1 else GroupPhase.COMPLETE

    def scored(self) -> list[Trajectory]:
        return [t for t in self.members.values() if t.phase is TrajectoryPhase.SCORED]

    def check(self) -> None:
        unsettled = sum(t.phase not in SETTLED for t in self.members.values())
        assert unsettled == self.num_unsettled, self.story
        assert (self.phase is GroupPhase.OPEN) == (unsettled > 0), self.story
        for member, trajectory in self.members.items():
            assert member == trajectory.id
            assert member.group == self.id
            assert (trajectory.instance is not None) == (trajectory.phase is TrajectoryPhase.RUNNING), trajectory.story
            versions = [version for version, _ in trajectory.segments]
            assert versions == sorted(set(versions)), trajectory.story
            has_ended = trajectory.phase not in (TrajectoryPhase.PENDING, TrajectoryPhase.RUNNING)
            assert (trajectory.finish is not None) == has_ended, trajectory.story
