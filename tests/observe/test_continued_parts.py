"""A run is continued with evaluation sets that are scored in another way: its scores have other parts from then on."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest

from core.test_changed_course import SHAPES, finish
from core.world import World
from observe.observers import Observers
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import replay_all
from tailrace.core.outcomes import Part
from tailrace.core.responses.response import ResponsePhase
from tailrace.core.rewards.rules import _is_generating
from tailrace.core.schedule import Schedule
from tailrace.observe.prompts.fates import TRAINED
from tailrace.policies.strategies import policies_of

F, T, J = Part
PARTS = [((F, T), (F,)), ((F,), (F, T)), ((F,), (T,)), ((F, T), (F, T, J)), ((F, T, J), (T,))]


@pytest.mark.parametrize(("before", "after"), PARTS)
@pytest.mark.parametrize("shape", ["sync", "tail-batching", "streamed"])
def test_every_response_gets_its_score_and_observers_say_the_same(
    shape: str, before: tuple[Part, ...], after: tuple[Part, ...]
) -> None:
    schedule = Schedule(
        train_source="train", batch_size=2, group_size=2, max_steps=4, score_parts=before, **SHAPES[shape]
    )
    num_halves = 0
    for seed in range(15):
        world = World(schedule, random.Random(seed))
        world.tell(ev.RunStarted(schedule=schedule))
        for _ in range(10 + 4 * seed):
            world.advance()
        num_halves += any(response.part_scores for response in world.coordinator.rooms.responses.all_responses())
        world.crash_and_resume(score_parts=after)
        finish(world)
        replayed = replay_all(iter(world.entries), lambda first: Coordinator(first, policies=policies_of(first)))
        assert replayed == len(world.entries)
        observers = Observers(schedule)
        for fold in (observers.told, observers.account):
            for entry in world.entries:
                fold.feed(entry)
        steps = observers.told.steps
        assert [row["step"] for row in observers.account.steps] == [1, 2, 3, 4]
        for row, step in zip(observers.account.steps, steps, strict=True):
            assert row["reward/mean"] == pytest.approx(fmean(step.scores))
        trained = [fate for fate in observers.account.fates.groups.values() if fate.state == TRAINED]
        assert all(len([n for n in fate.responses.values() if n.outcome is not None]) >= 2 for fate in trained)
    assert num_halves or len(before) == 1, "no run was stopped with half a score"


@pytest.mark.parametrize("after", [(F,), (T,), (F, J), (F, T, J)])
@pytest.mark.parametrize("changes", [{"filters_equal_scores": True}, {"filters_equal_scores": True, "group_size": 3}])
def test_half_scores_that_are_held_back_since_an_earlier_resume_are_settled_too(
    changes: dict[str, Any], after: tuple[Part, ...]
) -> None:
    """With a barrier, responses whose score was half there wait until replaced groups are generated."""
    given = {"batch_size": 3, "group_size": 2, "max_steps": 3, "epoch_size": 29, **changes}
    schedule = Schedule(train_source="train", score_parts=(F, T), is_reward_streamed=False, **given)
    num_held = 0
    for seed in range(12):
        world = World(schedule, random.Random(seed), num_prompts=29)
        world.tell(ev.RunStarted(schedule=schedule))
        while world.verdict is None and not is_half_scored_while_others_are_generated(world):
            world.advance()
        if world.verdict is not None:
            continue
        world.crash_and_resume()
        responses = world.coordinator.rooms.responses.all_responses()
        num_held += any(each.part_scores and each.phase is ResponsePhase.GENERATED for each in responses)
        world.crash_and_resume(score_parts=after)
        finish(world)
    assert num_held


def is_half_scored_while_others_are_generated(world: World) -> bool:
    rooms = world.coordinator.rooms
    return _is_generating(rooms) and any(each.part_scores for each in rooms.responses.all_responses())
