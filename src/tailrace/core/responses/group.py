"""The life of a group: one prompt and its responses, the unit of training.

      +-----> DEFERRED (waits for a later round)
      v           ^
    OPEN -------->+
     |            |
     +--> COMPLETE +--> TAKEN --> TRAINED          (a training prompt)
     |           +---> EVALUATED                   (a prompt of an evaluation set)
     +---> DROPPED                                 (it will not be trained)
     +---> FILTERED                                (dynamic sampling: all scores are equal)

A group is COMPLETE when ``num_needed`` members are scored, or when all members are settled and at least one is scored.
A member is settled when it is scored or dropped. A group is TAKEN from the moment it belongs to the batch of a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tailrace.core.errors import InvalidTransition
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.response import SETTLED, Response, ResponsePhase


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
    """One prompt and its responses. It owns its members."""

    id: GroupId
    num_needed: int
    """Number of scored members that makes it complete."""
    is_training: bool = True
    """False: a prompt of an evaluation set."""
    members: dict[ResponseId, Response] = field(default_factory=dict)
    version: Version | None = None
    """Oldest version that may have generated any of its tokens: the version of the instance that its first member went
    to; None before that. For an evaluation, the version that is evaluated."""
    domain: str = ""
    attempt: int = 0
    is_replacement: bool = False
    """Whether it took the place of a filtered or dropped group of its round, so that it started later than others."""
    num_unsettled: int = 0
    phase: GroupPhase = GroupPhase.OPEN
    story: list[str] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        """Whether it is open or complete. A live group counts in its round."""
        return self.phase is GroupPhase.OPEN or self.phase is GroupPhase.COMPLETE

    def begin(self, size: int) -> None:
        """Add ``size`` new members."""
        ids = [ResponseId(self.id, member, self.attempt) for member in range(size)]
        self.members = {i: Response(id=i) for i in ids}
        self.num_unsettled = size

    def take_members(self) -> list[Response]:
        """Remove and return all members. New members will have a higher attempt, so they sample other tokens."""
        members = list(self.members.values())
        self.members, self.num_unsettled, self.version = {}, 0, None
        self.attempt += 1
        return members

    def restart_member(self, old: Response) -> Response:
        """Replace a member by a new attempt at the same response."""
        del self.members[old.id]
        fresh = Response(id=old.id._replace(attempt=old.id.attempt + 1))
        self.members[fresh.id] = fresh
        return fresh

    def move(self, new: GroupPhase, *, now: float) -> None:
        if (self.phase, new) not in LEGAL:
            raise InvalidTransition(f"group {self.id}", self.phase.value, new.value, self.story)
        self.story.append(f"{now:.3f}  {self.phase.value} -> {new.value}")
        self.phase = new

    def settle(self, *, now: float, filters_equal: bool = False) -> None:
        """Count one more settled member, and conclude the group if it was the last one needed."""
        self.num_unsettled -= 1
        if self.phase is GroupPhase.OPEN:
            self.conclude(now=now, filters_equal=filters_equal)

    def conclude(self, *, now: float, filters_equal: bool = False) -> None:
        """Move to the next phase if enough members are settled."""
        if self.num_unsettled == 0 or len(self.scored()) >= self.num_needed:
            self.move(self._fate(filters_equal), now=now)

    def _fate(self, filters_equal: bool) -> GroupPhase:
        scores = {response.score for response in self.scored()}
        if not scores:
            return GroupPhase.DROPPED
        return GroupPhase.FILTERED if filters_equal and len(scores) == 1 else GroupPhase.COMPLETE

    def scored(self) -> list[Response]:
        return [r for r in self.members.values() if r.phase is ResponsePhase.SCORED]

    def take_unsettled(self) -> list[Response]:
        """Remove and return the members that are not settled yet."""
        return self._take([r for r in self.members.values() if r.phase not in SETTLED])

    def take_surplus(self) -> list[Response]:
        """Remove and return the members beyond ``num_needed``. Those with the most progress are kept."""
        by_need = sorted(
            self.members.values(), key=lambda r: (r.phase not in SETTLED, not r.has_ended, -r.length, r.id)
        )
        return self._take(by_need[self.num_needed :])

    def _take(self, members: list[Response]) -> list[Response]:
        for response in members:
            del self.members[response.id]
            self.num_unsettled -= response.phase not in SETTLED
        return members

    def oldest_version(self) -> Version | None:
        """Oldest version that generated a token of a scored member; None if they have no tokens."""
        return min((r.segments[0][0] for r in self.scored() if r.segments), default=None)

    def check(self) -> None:
        unsettled = sum(r.phase not in SETTLED for r in self.members.values())
        assert unsettled == self.num_unsettled, self.story
        assert unsettled == 0 or self.phase in (GroupPhase.OPEN, GroupPhase.DEFERRED), self.story
        for member, response in self.members.items():
            assert self.version is not None or response == Response(id=member), "a new group with a begun member"
            assert member == response.id
            assert member.group == self.id
            assert (response.instance is not None) == (response.phase is ResponsePhase.RUNNING), response.story
            versions = [version for version, _ in response.segments]
            assert response.length == sum(count for _, count in response.segments), response.story
            assert versions == sorted(set(versions)), response.story
            assert (response.finish is not None) == response.has_ended, response.story
            assert self.version is None or not versions or self.version <= versions[0], response.story
