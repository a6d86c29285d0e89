"""A complete group that the quotas leave over is not taken back into the round that has just left it over."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from core.histories import I0
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.rooms import Rooms
from tailrace.core.rules import RULES, Rule
from tailrace.core.schedule import Leftovers, Schedule

DOMAINS = {0: "b", 1: "b", 2: "a", 3: "a", 4: "a", 5: "b", 6: "a"}


def bounded(rule: Rule) -> Rule:
    """The rule, which fails where it would go on for ever."""

    def apply(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
        for count, step in enumerate(rule(rooms, now)):
            assert count < 100, f"{rule.__name__} does not end"
            yield step

    return apply


def offer(world: World, *prompts: int) -> None:
    domains = tuple(DOMAINS[prompt] for prompt in prompts)
    positions = tuple((0, prompt) for prompt in prompts)
    world.tell(
        ev.PromptsOffered(source="train", prompts=positions, next_epoch=0, next_offset=prompts[-1] + 1, domains=domains)
    )


def finish(world: World, prompt: int, *, is_useful: bool) -> None:
    """Both responses of the prompt end; if it is useful, their scores differ."""
    members = [ResponseId(GroupId("train", 0, prompt), member) for member in range(2)]
    ended = tuple(ev.Finished(response=member, length=1, finish=Finish.STOP) for member in members)
    world.tell(ev.RolloutReported(instance=I0, version=Version(0), finished=ended))
    scores = [0.0, float(is_useful)]
    scored = tuple(
        ev.Scored(response=member, outcome=Outcome.OK, score=score, seconds=0.1)
        for member, score in zip(members, scores, strict=True)
    )
    world.tell(ev.ResponsesScored(scores=scored))


def requested(world: World) -> list[do.Command]:
    return [command for command in world.entries[-1].commands if isinstance(command, do.RequestPrompts)]


@pytest.fixture
def world() -> World:
    """Batches of three, launched as five; the quotas are two of ``a`` and one of ``b``. One group of ``b`` is accepted.
    Another one, which replaced a filtered group, is complete with its tokens kept, and left over."""
    schedule = Schedule(
        train_source="train",
        batch_size=3,
        group_size=2,
        max_steps=3,
        launch_prompts=5,
        leftovers=Leftovers.DEFER,
        keep_deferred_tokens=True,
        max_staleness=1,
        rounds_ahead=1,
        filters_equal_scores=True,
        has_quotas=True,
        epoch_size=40,
    )
    world = World(schedule, random.Random(0), rules=[bounded(rule) for rule in RULES])
    world.tell(ev.RunStarted(schedule=schedule))
    offer(world, 0, 1, 2, 3, 4)
    world.tell(ev.InstanceStarted(instance=I0, version=Version(0)))
    finish(world, 0, is_useful=False)
    offer(world, 5)
    finish(world, 1, is_useful=True)
    finish(world, 5, is_useful=True)
    room = world.coordinator.rooms.collection
    assert room.round is not None
    assert set(room.round.quota_leftovers) == set(room.late) == {GroupId("train", 0, 5)}
    return world


def test_a_group_that_the_quotas_left_over_is_not_taken_back_at_once(world: World) -> None:
    """A group of ``a`` is filtered, so the round needs another one. The group of ``b`` that waits would be complete at
    once and be left over again, for ever."""
    assert requested(world) == []
    finish(world, 2, is_useful=False)
    assert requested(world) == [do.RequestPrompts(source="train", epoch=0, offset=6, count=1)]
    assert set(world.coordinator.rooms.collection.late) == {GroupId("train", 0, 5)}


def test_the_next_round_begins_with_the_group_that_the_quotas_left_over(world: World) -> None:
    finish(world, 3, is_useful=True)
    finish(world, 4, is_useful=True)
    [closed] = [c for c in world.entries[-1].commands if isinstance(c, do.CloseRound)]
    assert [group.prompt for group in closed.accepted] == [1, 3, 4]
    [opened] = [c for c in world.entries[-1].commands if isinstance(c, do.OpenRound)]
    assert [group.prompt for group in opened.resumed] == [5]
