"""Tail batching on few prompts: a deferred prompt is trained before it comes again, so prompts may run out for a while.

Prompts that must not come again yet are those of the batches that wait for training, those of the long queue (fewer
than a batch when a short round begins) and those of the round itself:

    rounds_ahead * batch_size  +  (batch_size - 1)  +  launch_prompts

With as many prompts in a pass, a round always finds the next one. With fewer, every prompt that is offered may be held
back until a step is trained, and asking for more is useless.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import EpochEnd, Leftovers, Limits, Schedule
from tailrace.core.schedule.soundness import sound

SIZES = [(1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (3, 6)]


def tail_batching(batch_size: int, launch_prompts: int, rounds_ahead: int, num_prompts: int) -> Schedule:
    return Schedule(
        train_source="train",
        batch_size=batch_size,
        group_size=1,
        max_steps=12,
        launch_prompts=launch_prompts,
        leftovers=Leftovers.DEFER,
        max_staleness=rounds_ahead,
        admission=AdmissionRule.DEADLINE,
        rounds_ahead=rounds_ahead,
        epoch_size=num_prompts,
        limits=Limits(max_restarts=1000),
    )


def least_prompts(batch_size: int, launch_prompts: int, rounds_ahead: int) -> int:
    """The smallest pass over the data that is accepted."""
    for num_prompts in range(1, 100):
        try:
            sound(tail_batching(batch_size, launch_prompts, rounds_ahead, num_prompts))
        except ValueError:
            continue
        return num_prompts
    raise AssertionError("no data set is large enough")


class SlowTrainer(World):
    """Prompts are offered as soon as they are asked for; the trainer answers when nothing else is left to happen."""

    num_offers_in_a_row = 0

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        is_offer = isinstance(event, ev.PromptsOffered)
        self.num_offers_in_a_row = self.num_offers_in_a_row + 1 if is_offer else 0
        limit = 2 * self.num_prompts
        assert self.num_offers_in_a_row <= limit, f"asked {limit} times for prompts while nothing else happened"

    def act(self) -> None:
        asked = [command for command in self.open if isinstance(command, do.RequestPrompts)]
        slow = [
            command for command in self.open if isinstance(command, (do.Accumulate, do.FinishStep, do.PublishWeights))
        ]
        if asked:
            self.open.remove(asked[0])
            self.answer(asked[0])
        elif len(slow) < len(self.open) or not (self.rewards or any(self.running.values())):
            for command in slow if len(slow) < len(self.open) else []:
                self.open.remove(command)
                self.open.append(command)
            self.answer(self.open.popleft())
        elif self.rewards:
            self.reward()
        else:
            self.report(self.rng.choice([number for number, running in self.running.items() if running]))


CASES = [(*sizes, rounds_ahead) for sizes in SIZES for rounds_ahead in range(4)]


@pytest.mark.parametrize(("batch_size", "launch_prompts", "rounds_ahead"), CASES)
def test_the_smallest_data_set_that_is_accepted_is_never_asked_for_prompts_without_end(
    batch_size: int, launch_prompts: int, rounds_ahead: int
) -> None:
    num_prompts = least_prompts(batch_size, launch_prompts, rounds_ahead)
    schedule = tail_batching(batch_size, launch_prompts, rounds_ahead, num_prompts)
    for seed in range(3):
        world = SlowTrainer(schedule, random.Random(seed), num_prompts=num_prompts, checks=False)
        assert world.run().is_complete
        assert len(world.trained) == schedule.max_steps


def prompts_in_use(batch_size: int, launch_prompts: int, rounds_ahead: int) -> int:
    """The most prompts that must not come again yet, with the one a short round looks for last."""
    return rounds_ahead * batch_size + (batch_size - 1) + launch_prompts


@pytest.mark.parametrize(("batch_size", "launch_prompts", "rounds_ahead"), CASES)
def test_a_data_set_is_accepted_only_if_a_round_always_finds_its_next_prompt(
    batch_size: int, launch_prompts: int, rounds_ahead: int
) -> None:
    """Batches that wait for training count: each round ahead may hold one of them back."""
    needed = prompts_in_use(batch_size, launch_prompts, rounds_ahead)
    assert least_prompts(batch_size, launch_prompts, rounds_ahead) >= needed


@pytest.mark.parametrize(("batch_size", "launch_prompts", "rounds_ahead"), CASES)
def test_as_many_prompts_as_may_be_in_use_are_enough(batch_size: int, launch_prompts: int, rounds_ahead: int) -> None:
    """The schedule does not know how many there are, so nothing is refused."""
    schedule = tail_batching(batch_size, launch_prompts, rounds_ahead, 0)
    num_prompts = prompts_in_use(batch_size, launch_prompts, rounds_ahead)
    for seed in range(3):
        world = SlowTrainer(schedule, random.Random(seed), num_prompts=num_prompts, checks=False)
        assert world.run().is_complete


@pytest.mark.parametrize(("batch_size", "launch_prompts", "rounds_ahead"), CASES)
def test_while_every_prompt_of_the_data_set_is_unfinished_none_is_requested(
    batch_size: int, launch_prompts: int, rounds_ahead: int
) -> None:
    """With `flush` a pass may be as small as one round. A round that begins ahead of training then finds every prompt
    in a batch that is not trained yet, and has to wait for a step."""
    carried = tail_batching(batch_size, launch_prompts, rounds_ahead, 0)
    schedule = replace(carried, epoch_end=EpochEnd.FLUSH, epoch_size=launch_prompts)
    for seed in range(3):
        world = SlowTrainer(schedule, random.Random(seed), num_prompts=launch_prompts, checks=False)
        assert world.run().is_complete
        assert len(world.trained) == schedule.max_steps
