"""Domains in proportion: how a batch is divided, and that short rounds keep to it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from core.histories import I0, History, history, started, tail_batching
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.collection.group_changes import begin
from tailrace.core.collection.rounds import is_within_quota, next_round, shares
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Leftovers
from tailrace.policies.strategies import policies_of


@pytest.mark.parametrize(
    ("launched", "total", "expected"),
    [
        ({"a": 4, "b": 2}, 3, {"a": 2, "b": 1}),
        ({"a": 3, "b": 3}, 3, {"a": 2, "b": 1}),
        ({"b": 3, "a": 3}, 3, {"a": 2, "b": 1}),
        ({"a": 1, "b": 5}, 4, {"a": 1, "b": 3}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 1, "b": 1, "c": 0}),
        ({"a": 1, "b": 19}, 4, {"a": 0, "b": 4}),
        ({"a": 5}, 4, {"a": 4}),
    ],
)
def test_a_total_is_divided_by_largest_remainder(
    launched: dict[str, int], total: int, expected: dict[str, int]
) -> None:
    assert shares(Counter(launched), total) == expected


def domains(found: History) -> dict[GroupId, str]:
    offers = [e.event for e in found.world.entries if isinstance(e.event, ev.PromptsOffered)]
    mine = [offer for offer in offers if offer.source == "train"]
    return {
        GroupId("train", *prompt): domain
        for offer in mine
        for prompt, domain in zip(offer.prompts, offer.domains, strict=True)
    }


@pytest.fixture(scope="module")
def histories() -> list[History]:
    found = []
    for seed in range(25):
        rng = random.Random(f"quotas-{seed}")
        schedule = tail_batching(rng, batch_size=4, launch_prompts=6, max_steps=6, has_quotas=True, max_in_flight=64)
        found.append(history(schedule, rng, trouble=0.0))
    return found


def test_a_short_round_takes_each_domain_in_proportion_to_its_launch(histories: list[History]) -> None:
    kinds = set()
    for found in histories:
        assert found.verdict.is_complete
        domain = domains(found)
        for _, closed in found.rounds():
            if closed.is_long:
                continue
            launched = Counter(domain[group] for group in (*closed.accepted, *closed.deferred))
            accepted = Counter(domain[group] for group in closed.accepted)
            expected = shares(launched, 4)
            assert all(accepted[name] == count for name, count in expected.items())
            kinds.add(tuple(sorted(expected.items())))
    assert len(kinds) > 1, "every round had the same mix, so the test shows little"


def test_a_long_round_takes_what_the_queue_holds(histories: list[History]) -> None:
    num_long = 0
    for found in histories:
        for opened, closed in found.rounds():
            num_long += closed.is_long
            assert not closed.is_long or sorted(opened.restarted) == sorted(closed.accepted)
    assert num_long > 10
    assert any(isinstance(command, do.CloseRound) for command in histories[0].commands)


def test_what_a_quota_left_over_still_counts_in_the_proportion() -> None:
    """Of four groups of each domain two are trained; if a group that is given up did not count, the others would get
    its share."""
    world = started(batch_size=6, group_size=1, launch_prompts=12, leftovers=Leftovers.DROP, has_quotas=True)
    prompts = tuple((0, prompt) for prompt in range(12))
    offer = ev.PromptsOffered(
        source="train", prompts=prompts, next_epoch=0, next_offset=12, domains=tuple("aaaabbbbcccc")
    )
    world.tell(offer)
    world.tell(ev.InstanceStarted(instance=I0, version=Version(0)))
    for prompt in (4, 5, 6, 0, 1, 2):
        response = ResponseId(GroupId("train", 0, prompt), 0)
        ended = ev.Finished(response=response, length=1, finish=Finish.STOP)
        world.tell(ev.RolloutReported(instance=I0, version=Version(0), finished=(ended,)))
        world.tell(ev.ResponsesScored(scores=(world.score(response),)))
    round = world.coordinator.rooms.collection.round
    assert round is not None
    assert {group.prompt: domain for group, domain in round.quota_leftovers.items()} == {6: "b", 2: "a"}


def test_a_group_beyond_its_quota_joins_the_batch_if_no_other_domain_can_fill_it() -> None:
    """Two of each domain are to be trained. One of ``b`` is accepted, and two were left over while fewer of ``b`` were
    to be trained; only a group of ``b`` that still runs could take the last place from a third group of ``a``."""
    schedule = started(batch_size=4, group_size=1, launch_prompts=6, leftovers=Leftovers.DROP, has_quotas=True).schedule
    rooms = Rooms(schedule, policies_of(schedule))
    round = rooms.collection.round = next_round(rooms)
    assert round is not None
    *complete, third, running, left, over = (GroupId("train", 0, prompt) for prompt in range(7))
    for group, domain in zip((*complete, third), "aaba", strict=True):
        begin(rooms, group, domain)
    rooms.collection.complete = dict.fromkeys(complete)
    round.quota_leftovers = {left: "b", over: "b"}
    assert is_within_quota(rooms, rooms.responses.groups[third])
    begin(rooms, running, "b")
    assert not is_within_quota(rooms, rooms.responses.groups[third])
