"""A run is continued with evaluation sets that are scored in another way: its scores have other parts from then on."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from core.test_changed_course import SHAPES, finish
from core.world import World
from observe.observers import Observers
from tailrace.core import events as ev
from tailrace.core.outcomes import Part
from tailrace.core.schedule import Schedule

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
        observers = Observers(schedule)
        for fold in (observers.told, observers.account):
            for entry in world.entries:
                fold.feed(entry)
        steps = observers.told.steps
        assert [row["step"] for row in observers.account.steps] == [1, 2, 3, 4]
        for row, step in zip(observers.account.steps, steps, strict=True):
            assert row["reward/mean"] == pytest.approx(fmean(step.scores))
    assert num_halves or len(before) == 1, "no run was stopped with half a score"
