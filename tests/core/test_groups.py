"""Which members of a group count, and for what."""

from __future__ import annotations

import pytest

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.group import Group
from tailrace.core.responses.response import Response, ResponsePhase

GROUP = GroupId("train", 0, 1)
PENDING, RUNNING = ResponsePhase.PENDING, ResponsePhase.RUNNING
GENERATED, SCORED = ResponsePhase.GENERATED, ResponsePhase.SCORED


def group(*members: tuple[ResponsePhase, Version, int]) -> Group:
    """Each member has a number of tokens of one version; two of them are needed."""
    found = Group(id=GROUP, num_needed=2, version=Version(0))
    for number, (phase, version, length) in enumerate(members):
        member = Response(id=ResponseId(GROUP, number), phase=phase)
        member.grow(length, version)
        found.members[member.id] = member
        found.num_unsettled += phase is not SCORED
    return found


@pytest.mark.parametrize(
    ("members", "kept"),
    [
        ([(PENDING, 0), (RUNNING, 1), (RUNNING, 9)], {1, 2}),
        ([(PENDING, 0), (RUNNING, 1), (RUNNING, 9), (GENERATED, 2)], {2, 3}),
        ([(RUNNING, 8), (RUNNING, 9), (GENERATED, 2), (SCORED, 1)], {2, 3}),
        ([(GENERATED, 8), (GENERATED, 9), (SCORED, 1), (SCORED, 1)], {2, 3}),
        ([(PENDING, 3), (PENDING, 3), (PENDING, 3)], {0, 1}),
    ],
)
def test_a_group_keeps_the_members_that_are_furthest(members: list[tuple[ResponsePhase, int]], kept: set[int]) -> None:
    found = group(*((phase, Version(0), length) for phase, length in members))
    given_up = found.take_surplus()
    assert {member.member for member in found.members} == kept
    assert {member.id.member for member in given_up} == set(range(len(members))) - kept
    assert found.num_unsettled == sum(member.phase is not SCORED for member in found.members.values())


def test_the_oldest_version_of_a_group_is_over_the_members_that_are_scored() -> None:
    found = group((SCORED, Version(2), 4), (SCORED, Version(1), 3), (RUNNING, Version(0), 5))
    assert found.oldest_version() == 1
    assert group((SCORED, Version(1), 0)).oldest_version() is None, "it has no tokens"


def test_a_member_that_begins_again_is_the_next_attempt_at_the_same_response() -> None:
    found = group((RUNNING, Version(0), 5), (RUNNING, Version(0), 7))
    first, second = found.members.values()
    fresh = found.restart_member(first)
    again = found.restart_member(fresh)
    assert [fresh.id, again.id] == [ResponseId(GROUP, 0, 1), ResponseId(GROUP, 0, 2)]
    assert again.length == 0
    assert list(found.members.values()) == [second, again]
    assert found.num_unsettled == 2


def test_every_attempt_counts_one_up() -> None:
    found = Group(id=GROUP, num_needed=1)
    for attempt in range(3):
        found.begin(1)
        assert list(found.members) == [ResponseId(GROUP, 0, attempt)]
        found.take_members()
