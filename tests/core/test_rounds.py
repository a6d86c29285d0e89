"""What a round takes in, and when it may end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.histories import active_partial, history, started, tail_batching
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.collection.filtering import FilteredShare
from tailrace.core.collection.group_changes import begin
from tailrace.core.collection.rounds import next_round
from tailrace.core.collection.rules import request_prompts
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import EvalSet, Leftovers, Limits, VersionCap
from tailrace.policies.strategies import policies_of

HELDOUT = (EvalSet(name="heldout", num_prompts=2, group_size=2),)


def test_a_prompt_that_comes_again_too_early_is_held_back_and_replaced() -> None:
    """A pass in another order may begin with the prompts the last one ended with."""
    world = started(group_size=1, leftovers=Leftovers.DEFER, launch_prompts=3)
    prompts = ((0, 5), (0, 6), (1, 5))
    world.tell(ev.PromptsOffered(source="train", prompts=prompts, next_epoch=1, next_offset=1))
    rooms = world.coordinator.rooms
    assert list(rooms.responses.groups) == [GroupId("train", 0, 5), GroupId("train", 0, 6)]
    assert list(rooms.collection.held) == [GroupId("train", 1, 5)]
    assert do.RequestPrompts(source="train", epoch=1, offset=1, count=1) in world.entries[-1].commands


def test_prompts_that_were_held_back_come_before_others_and_one_visit_after_the_other() -> None:
    schedule = started(group_size=1, leftovers=Leftovers.DEFER, launch_prompts=3).schedule
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.collection.round = next_round(rooms)
    first, *held = [GroupId("train", *visit) for visit in ((0, 7), (1, 5), (2, 5), (1, 7), (1, 6), (1, 8))]
    begin(rooms, first, "")
    rooms.collection.held = dict.fromkeys(held, "")
    assert not [c for c in request_prompts(rooms, 0.0) if c is not None], "the round is full"
    assert [(group.epoch, group.prompt) for group in rooms.responses.groups] == [(0, 7), (1, 5), (1, 6)]
    rooms.collection.round.size = rooms.collection.round.num_kept = 5
    [request] = [c for c in request_prompts(rooms, 0.0) if c is not None]
    assert request == do.RequestPrompts(source="train", epoch=0, offset=0, count=1)
    assert list(rooms.responses.groups)[3:] == [GroupId("train", 1, 8)]
    assert [(group.epoch, group.prompt) for group in rooms.collection.held] == [(2, 5), (1, 7)], (
        "their prompts are here already"
    )


def test_a_queue_of_several_batches_is_trained_in_long_rounds_one_after_the_other() -> None:
    rng = random.Random(0)
    schedule = tail_batching(rng, batch_size=2, group_size=1, launch_prompts=9, launch_responses=1, max_steps=8)
    kinds = [closed.is_long for _, closed in history(schedule, rng, trouble=0.0).rounds()]
    assert kinds == [False, True, True, True, False, True, True, True]


def test_a_long_round_takes_as_many_from_the_queue_as_were_filtered() -> None:
    """Every event is checked: a round that took more would have more groups than its size."""
    for seed in range(3):
        rng = random.Random(f"top-up-{seed}")
        schedule = tail_batching(
            rng,
            batch_size=2,
            group_size=2,
            launch_prompts=9,
            launch_responses=2,
            max_steps=6,
            filters_equal_scores=True,
        )
        found = history(schedule, rng, trouble=0.0)
        assert found.verdict.is_complete
        num_long = sum(closed.is_long for _, closed in found.rounds())
        assert num_long > 0
        assert found.left_out()


def test_a_deferred_group_that_keeps_its_tokens_stops_at_once() -> None:
    num_stopped = 0
    for seed in range(5):
        rng = random.Random(f"stop-{seed}")
        schedule = tail_batching(rng, keep_deferred_tokens=True, max_staleness=1, launch_responses=0)
        running: set[ResponseId] = set()
        for entry in history(schedule, rng, trouble=0.0, checks=False).world.entries:
            if isinstance(entry.event, ev.RolloutReported):
                running -= {ended.response for ended in entry.event.finished}
            stopped = {r for c in entry.commands if isinstance(c, do.Interrupt) for r in c.responses}
            deferred = {g for c in entry.commands if isinstance(c, do.CloseRound) for g in c.deferred}
            assert stopped == {response for response in running if response.group in deferred}
            num_stopped += len(stopped)
            running |= {d.response for c in entry.commands if isinstance(c, do.Submit) for d in c.dispatches}
    assert num_stopped > 0


class LateOffers(World):
    """Prompts come only when nothing is generated or scored."""

    def answer(self, command: do.Command) -> None:
        is_busy = bool(self.rewards) or any(self.running.values())
        if isinstance(command, do.RequestPrompts) and is_busy:
            self.open.append(command)
        else:
            super().answer(command)


def test_a_long_round_has_no_groups_in_excess_even_where_prompts_come_late() -> None:
    """Every event is checked, as above. A group was filtered, the others filled the batch before the prompt that was
    to replace it came: the next round begins with it, not before it."""
    for seed in range(5):
        rng = random.Random(f"late-{seed}")
        changes = {"group_size": 2, "launch_responses": 2, "filters_equal_scores": True}
        schedule = tail_batching(rng, batch_size=2, launch_prompts=4, rounds_ahead=1, max_staleness=1, **changes)
        schedule = replace(schedule, limits=Limits(prompts_s=1e6))
        world = LateOffers(schedule, rng, num_prompts=29)
        assert world.run().is_complete


@pytest.mark.parametrize("version_cap", VersionCap)
def test_a_training_response_at_its_cap_of_versions_is_waited_for_or_begins_again(version_cap: VersionCap) -> None:
    again = set()
    for seed in range(10):
        rng = random.Random(f"cap-{seed}")
        schedule = active_partial(
            rng, max_versions_per_sample=1, version_cap=version_cap, eval_sets=HELDOUT, eval_interval=1
        )
        submits = [c for c in history(schedule, rng, trouble=0.0, checks=False).commands if isinstance(c, do.Submit)]
        again |= {d.response.group.source for submit in submits for d in submit.dispatches if d.response.attempt}
    assert again == ({"train"} if version_cap is VersionCap.RESTART else set())


def share_of(num_filtered: int, *, num_scored: int) -> FilteredShare:
    share = FilteredShare()
    for index in range(num_scored):
        share.add(is_filtered=index < num_filtered)
    return share


@pytest.mark.parametrize(
    ("num_filtered", "expected"),
    [
        pytest.param(0, 0, id="none was filtered"),
        pytest.param(2, 2, id="every third"),
        pytest.param(3, 4, id="every second"),
        pytest.param(6, 12, id="all of them: at most three more for each that passes"),
    ],
)
def test_as_many_groups_are_expected_to_be_filtered_as_the_share_so_far_says(num_filtered: int, expected: int) -> None:
    assert share_of(num_filtered, num_scored=6).expected(4) == expected


def test_no_group_is_expected_to_be_filtered_before_a_batch_of_them_was_scored() -> None:
    assert share_of(2, num_scored=3).expected(4) == 0
    assert share_of(2, num_scored=4).expected(4) == 4
