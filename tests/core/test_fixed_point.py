"""After every event all that can be done is done: an empty event at the same moment changes nothing.

Otherwise something waits for news that has nothing to do with it, in the worst case until the next timer.
"""

from __future__ import annotations

import random

from hypothesis import given

from core.histories import NUM_PROMPTS, Case, cases, coordinated, held_to, one_schedule, tail_batching
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
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
@given(cases(tail_batching, max_staleness=2, rounds_ahead=1, keeps_deferred_tokens=True))
def test_deferred_responses_that_keep_their_tokens_wait_for_nothing(case: Case) -> None:
    run(case)


@held_to(10)
@given(cases(coordinated, 0.0, 0.05))
def test_a_plan_leaves_nothing_to_the_next_event(case: Case) -> None:
    run(case)
