"""Dynamic sampling where few prompts are useful: a round that has tried all others takes those that were deferred.

Twelve of forty prompts have responses with different scores, and a batch needs eight. With `defer`, useful prompts may
be in the long queue, or in a batch that waits for training, and must not start again before they are trained.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from core.histories import History, check_batches, check_conservation, until
from core.test_small_data_sets import SlowTrainer
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.collection.rounds import is_used_up
from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import Leftovers, Schedule

NUM_PROMPTS, NUM_USEFUL = 40, 12
ORDER = random.Random(1).sample(range(NUM_PROMPTS), NUM_PROMPTS)


class FewUseful(SlowTrainer):
    """The trainer answers when nothing else is left to happen."""

    def score(self, response: ResponseId) -> ev.Scored:
        is_useful = response.group.prompt < NUM_USEFUL
        score = float(response.member % 2 and is_useful)
        return ev.Scored(response=response, outcome=Outcome.OK, score=score, seconds=0.01)

    def offer(self, command: do.RequestPrompts) -> ev.PromptsOffered:
        offered = super().offer(command)
        return replace(offered, prompts=tuple((epoch, ORDER[index]) for epoch, index in offered.prompts))

    def tell(self, event: ev.Event) -> None:
        World.tell(self, event)


def schedule_of(**changes: object) -> Schedule:
    common: dict[str, object] = {
        "train_source": "train",
        "batch_size": 8,
        "group_size": 2,
        "max_steps": 8,
        "launch_prompts": 12,
        "leftovers": Leftovers.DEFER,
        "epoch_size": NUM_PROMPTS,
        "filters_equal_scores": True,
        "num_instances": 2,
    }
    return Schedule(**{**common, **changes})  # type: ignore[arg-type]


def ran(schedule: Schedule, seed: int) -> FewUseful:
    world = FewUseful(schedule, random.Random(seed), num_prompts=NUM_PROMPTS, checks=False)
    world.run(max_events=30_000)
    return world


SHAPES: dict[str, dict[str, object]] = {
    "synchronous": {},
    "ahead": {"rounds_ahead": 1, "max_staleness": 1},
    "far ahead": {"rounds_ahead": 2, "max_staleness": 2, "launch_prompts": 16, "launch_responses": 3},
    "tokens kept": {"rounds_ahead": 1, "max_staleness": 1, "launch_prompts": 16, "keep_deferred_tokens": True},
    "quotas": {"has_quotas": True, "launch_prompts": 16},
    "quotas ahead": {"has_quotas": True, "rounds_ahead": 1, "max_staleness": 1, "launch_responses": 3},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("leftovers", [Leftovers.DEFER, Leftovers.DROP], ids=lambda leftovers: leftovers.value)
def test_a_run_with_few_useful_prompts_finishes(shape: str, leftovers: Leftovers) -> None:
    changes = SHAPES[shape] | {"leftovers": leftovers}
    if leftovers is Leftovers.DROP:
        changes["keep_deferred_tokens"] = False
    schedule = schedule_of(**changes)
    for seed in range(5):
        world = ran(schedule, seed)
        assert world.verdict is not None
        assert world.verdict.is_complete, f"seed {seed}: {world.verdict.reason}"
        world.coordinator.check()
        found = History(schedule=schedule, world=world, verdict=world.verdict)
        check_batches(found)
        check_conservation(found)
        for _, closed in found.rounds():
            assert not set(closed.accepted) & {*closed.deferred, *closed.late, *closed.dropped, *closed.kept}


def num_begun(world: World) -> int:
    """Groups that were started for a prompt, the first time."""
    return sum(len(e.event.prompts) for e in world.entries if isinstance(e.event, ev.PromptsOffered))


def test_a_round_that_has_tried_all_prompts_waits_for_the_step_that_frees_the_others() -> None:
    """It does not go through the useless ones again and again meanwhile."""
    schedule = schedule_of(rounds_ahead=1, max_staleness=1)
    for seed in range(5):
        assert num_begun(ran(schedule, seed)) < 10 * NUM_PROMPTS


@pytest.mark.parametrize("num_useful", [0, 7])
def test_a_run_with_too_few_useful_prompts_for_a_batch_still_ends_with_a_sentence(num_useful: int) -> None:
    class TooFew(FewUseful):
        def score(self, response: ResponseId) -> ev.Scored:
            scored = super().score(response)
            return scored if response.group.prompt < num_useful else replace(scored, score=0.0)

    world = TooFew(schedule_of(), random.Random(0), num_prompts=NUM_PROMPTS, checks=False)
    verdict = world.run(max_events=30_000)
    assert not verdict.is_complete
    assert "had equal scores and were filtered" in verdict.reason


def test_a_short_round_leaves_the_long_queue_alone_while_there_are_other_prompts() -> None:
    """Every prompt is useful: nothing is filtered, and deferred prompts wait for a long round."""
    schedule = replace(schedule_of(), filters_equal_scores=False)
    world = ran(schedule, 0)
    queued: set[object] = set()
    for entry in world.entries:
        for command in entry.commands:
            if isinstance(command, do.CloseRound):
                queued |= set(command.deferred)
            elif isinstance(command, do.OpenRound) and command.is_long:
                queued -= set(command.restarted)
            elif isinstance(command, do.Submit):
                assert not queued & {dispatch.response.group for dispatch in command.dispatches}


@pytest.mark.parametrize(
    "changes",
    [{"leftovers": Leftovers.DROP}, {"filters_equal_scores": False}, {"epoch_size": 0}, {"edition": 1}],
    ids=lambda changes: next(iter(changes)),
)
def test_prompts_are_used_up_only_where_some_are_deferred_and_others_filtered(changes: dict[str, Any]) -> None:
    schedule = schedule_of(rounds_ahead=1, max_staleness=1)
    world = FewUseful(schedule, random.Random(0), num_prompts=NUM_PROMPTS, checks=False)
    world.tell(ev.RunStarted(schedule=schedule))
    rooms = world.coordinator.rooms
    until(world, lambda: is_used_up(rooms))
    rooms.schedule = replace(schedule, **changes)
    assert not is_used_up(rooms)
    rooms.schedule, rooms.collection.round = schedule, None
    assert not is_used_up(rooms), "there is no round"


def test_a_run_of_an_earlier_release_searches_as_it_did() -> None:
    world = ran(schedule_of(edition=1, rounds_ahead=1, max_staleness=1), 0)
    assert world.verdict is not None
    assert not world.verdict.is_complete
    assert world.coordinator.version == 0
