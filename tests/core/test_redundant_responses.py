"""Groups that begin with more responses than they train: their place in the ledger follows the responses they keep.

A group is admitted with the version of its first response. If that one is not kept, the group may be younger than it
was admitted for, and can be trained later: its place within the bound is free for another.
"""

from __future__ import annotations

import random

from hypothesis import given

from core.histories import NUM_PROMPTS, Case, cases, held_to
from core.world import World
from tailrace.core import events as ev
from tailrace.core.schedule import Leftovers, Schedule


def redundant(rng: random.Random) -> Schedule:
    return Schedule(
        train_source="train",
        batch_size=rng.randint(1, 3),
        group_size=1,
        launch_responses=3,
        max_steps=6,
        leftovers=Leftovers.KEEP,
        max_staleness=rng.randint(1, 3),
        num_instances=rng.randint(1, 3),
        max_in_flight=2,
        epoch_size=NUM_PROMPTS,
    )


class LedgerWorld(World):
    """Holds every finished group in the ledger to the oldest version of the tokens it keeps."""

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        rooms = self.coordinator.rooms
        for group_id in rooms.collection.complete:
            group = rooms.responses.groups[group_id]
            oldest = group.oldest_version()
            assert rooms.collection.ledger.version_of(group_id) == (group.version if oldest is None else oldest)


@held_to(40)
@given(cases(redundant))
def test_a_finished_group_is_as_old_as_the_responses_it_keeps(case: Case) -> None:
    LedgerWorld(case.schedule, random.Random(case.seed), num_prompts=NUM_PROMPTS, checks=False).run()
