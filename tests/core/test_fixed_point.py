"""After every event all that can be done is done: an empty event at the same moment changes nothing.

Otherwise something waits for news that has nothing to do with it, in the worst case until the next timer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given

from core.histories import NUM_PROMPTS, Case, cases, coordinated, held_to, one_schedule, tail_batching
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.errors import CoreError
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Schedule
from tailrace.policies.strategies import policies_of


class EchoWorld(World):
    """Asks after every event what a copy of the coordinator would still do."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        if self.verdict is None:
            left = left_to_do(self.coordinator, self.now)
            assert not left, f"after {event} there was still to do: {left}"


def left_to_do(coordinator: Coordinator, now: float) -> list[do.Command]:
    schedule = coordinator.schedule
    copy = Coordinator.restore(schedule, coordinator.snapshot(), policies=policies_of(schedule))
    return [command for command in copy.handle(ev.TimerFired(), now=now) if not isinstance(command, do.SetTimer)]


def run(case: Case) -> None:
    rng = random.Random(case.seed)
    EchoWorld(case.schedule, rng, num_prompts=NUM_PROMPTS, trouble=case.trouble, checks=False).run()


@held_to(30)
@given(cases(one_schedule, 0.0, 0.05))
def test_any_sound_schedule_does_all_it_can_after_every_event(case: Case) -> None:
    run(case)


@held_to(10)
@given(cases(tail_batching, max_staleness=2, rounds_ahead=1, keep_deferred_tokens=True))
def test_deferred_responses_that_keep_their_tokens_wait_for_nothing(case: Case) -> None:
    run(case)


@held_to(10)
@given(cases(coordinated, 0.0, 0.05))
def test_a_plan_leaves_nothing_to_the_next_event(case: Case) -> None:
    run(case)


def test_a_rule_that_always_has_something_to_do_is_an_error_that_names_the_last_twenty_commands() -> None:
    def never_done(rooms: Rooms, now: float) -> Iterator[do.Command | None]:
        yield do.SetTimer(at=now)
        yield None

    schedule = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1)
    coordinator = Coordinator(schedule, policies=policies_of(schedule), rules=[never_done])
    with pytest.raises(CoreError, match=r"no fixed point after RunStarted.* were: SetTimer(, SetTimer){19}$"):
        coordinator.handle(ev.RunStarted(schedule=schedule), now=0.0)
