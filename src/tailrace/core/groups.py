"""The life of a group: one prompt and its responses, the unit of training.

      +-----> DEFERRED (waits in the long queue)
      v           ^
    OPEN -------->+
     |            |
     +--> COMPLETE +--> TAKEN --> TRAINED          (a training prompt)
     |           +---> EVALUATED                   (a prompt of an evaluation set)
     +---> DROPPED                                 (given up, or no member could be scored)
     +---> FILTERED                                (dynamic sampling: all scores are equal)

A group is COMPLETE when as many members are scored as are trained, or when every member is settled and at least one
is scored. It is TAKEN from the moment it belongs to the batch of a step.
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
    DEFERRED = "deferred"
    TAKEN = "taken"
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
        (_P.OPEN, _P.DEFERRED),
        (_P.COMPLETE, _P.DEFERRED),
        (_P.COMPLETE, _P.DROPPED),
        (_P.COMPLETE, _P.OPEN),
        (_P.DEFERRED, _P.OPEN),
        (_P.COMPLETE, _P.TAKEN),
        (_P.COMPLETE, _P.EVALUATED),
        (_P.TAKEN, _P.TRAINED),
    }
)


@dataclass(slots=True, kw_only=True)
class Group:
    """Owns its members."""

    id: GroupId
    num_needed: int
    """Scored members that make it complete."""
    members: dict[TrajectoryId, Trajectory] = field(default_factory=dict)
    version: Version | None = None
    """The oldest version that may have generated any of its tokens: that of the instance its first member was given
    to, None before. For an evaluation: the version that is evaluated."""
    domain: str = ""
    attempt: int = 0
    num_unsettled: int = 0
    phase: GroupPhase = GroupPhase.OPEN
    story: list[str] = field(default_factory=list)

    def begin(self, size: int) -> None:
        """Give it ``size`` new members."""
        ids = [TrajectoryId(self.id, member, self.attempt) for member in range(size)]
        self.members = {i: Trajectory(id=i) for i in ids}
        self.num_unsettled = size

    def clear(self) -> list[Trajectory]:
        """Take its members away; another attempt will not sample what this one did."""
        members = list(self.members.values())
        self.members, self.num_unsettled, self.version = {}, 0, None
        self.attempt += 1
        return members

    def move(self, new: GroupPhase, *, now: float) -> None:
        if (self.phase, new) not in LEGAL:
            raise InvalidTransition(f"group {self.id}", self.phase.value, new.value, self.story)
        self.story.append(f"{now:.3f}  {self.phase.value} -> {new.value}")
        self.phase = new

    def settle(self, *, now: float, filters_equal: bool = False) -> None:
        """One more member is settled; the last one that is needed decides what becomes of the group."""
        self.num_unsettled -= 1
        if self.phase is GroupPhase.OPEN:
            self.conclude(now=now, filters_equal=filters_equal)

    def conclude(self, *, now: float, filters_equal: bool = False) -> None:
        """Move on if nothing is missing."""
        if self.num_unsettled == 0 or len(self.scored()) >= self.num_needed:
            self.move(self._fate(filters_equal), now=now)

    def _fate(self, filters_equal: bool) -> GroupPhase:
        scores = {trajectory.score for trajectory in self.scored()}
        if not scores:
            return GroupPhase.DROPPED
        return GroupPhase.FILTERED if filters_equal and len(scores) == 1 else GroupPhase.COMPLETE

    def scored(self) -> list[Trajectory]:
        return [t for t in self.members.values() if t.phase is TrajectoryPhase.SCORED]

    def forgo_unsettled(self) -> list[Trajectory]:
        """Take away the members that are not needed any more."""
        return self._forgo([t for t in self.members.values() if t.phase not in SETTLED])

    def forgo_surplus(self) -> list[Trajectory]:
        """Keep just as many members as are needed: those that are furthest."""
        by_need = sorted(
            self.members.values(), key=lambda t: (t.phase not in SETTLED, not t.has_ended, -t.length, t.id)
        )
        return self._forgo(by_need[self.num_needed :])

    def _forgo(self, members: list[Trajectory]) -> list[Trajectory]:
        for trajectory in members:
            del self.members[trajectory.id]
            self.num_unsettled -= trajectory.phase not in SETTLED
        return members

    def oldest_version(self) -> Version | None:
        """Over the tokens its scored members have; None without tokens."""
        return min((t.segments[0][0] for t in self.scored() if t.segments), default=None)

    def check(self) -> None:
        unsettled = sum(t.phase not in SETTLED for t in self.members.values())
        assert unsettled == self.num_unsettled, self.story
        assert unsettled == 0 or self.phase in (GroupPhase.OPEN, GroupPhase.DEFERRED), self.story
        for member, trajectory in self.members.items():
            assert self.version is not None or trajectory == Trajectory(id=member), "a new group with a begun member"
            assert member == trajectory.id
            assert member.group == self.id
            assert (trajectory.instance is not None) == (trajectory.phase is TrajectoryPhase.RUNNING), trajectory.story
            versions = [version for version, _ in trajectory.segments]
            assert trajectory.length == sum(count for _, count in trajectory.segments), trajectory.story
            assert versions == sorted(set(versions)), trajectory.story
            assert (trajectory.finish is not None) == trajectory.has_ended, trajectory.story
            assert self.version is None or not versions or self.version <= versions[0], trajectory.story
