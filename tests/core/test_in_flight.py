"""How much is in flight without rounds: what `async-cap` counts, and what becomes of a surplus."""

from __future__ import annotations

import random

from core.histories import NUM_PROMPTS, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.observe.prompts.conservation import conservation

KEEP = {"leftovers": Leftovers.KEEP}


def test_by_count_a_batch_is_replaced_when_its_version_can_be_pulled() -> None:
    """Sooner, what takes its place would begin with the version before: a step too old from the start."""
    world = started(**KEEP, max_staleness=1, admission=AdmissionRule.COUNT, max_steps=5)
    while world.verdict is None:
        world.advance()
    for number, entry in enumerate(world.entries):
        if not any(isinstance(command, do.RequestPrompts) for command in entry.commands):
            continue
        before = [each.event for each in world.entries[: number + 1]]
        trained = sum(isinstance(event, ev.StepTrained) for event in before)
        published = max((event.version for event in before if isinstance(event, ev.WeightsPublished)), default=0)
        assert trained == published


def in_flight(world: World) -> list[int]:
    """After every event: prompts that were asked for, less those whose step is in a version that can be pulled."""
    found, requested, published = [], 0, 0
    for entry in world.entries:
        requested += sum(command.count for command in entry.commands if isinstance(command, do.RequestPrompts))
        published = entry.event.version if isinstance(entry.event, ev.WeightsPublished) else published
        found.append(requested - world.schedule.batch_size * published)
    return found


def test_by_count_no_more_is_in_flight_than_the_bound_has_batches() -> None:
    world = started(**KEEP, max_staleness=1, admission=AdmissionRule.COUNT, max_steps=5)
    until(world, lambda: world.verdict is not None)
    assert max(in_flight(world)) == (1 + 1) * 2


def test_by_deadline_a_batch_is_replaced_when_it_begins_to_train() -> None:
    """The ledger knows which versions may begin what takes its place: nobody has to wait for the next one."""
    world = started(**KEEP, max_staleness=1, max_steps=5)
    until(world, lambda: any(isinstance(command, do.Accumulate) for command in world.open))
    assert world.coordinator.version == 0
    assert any(isinstance(command, do.RequestPrompts) for command in world.entries[-1].commands)
    assert in_flight(world)[-1] == (1 + 1) * 2 + 2


def test_what_has_no_place_left_within_the_bound_is_dropped_and_accounted_for() -> None:
    num_dropped = 0
    for seed in range(40):
        schedule = Schedule(
            train_source="train",
            batch_size=2,
            group_size=2,
            max_steps=6,
            launch_prompts=4,
            num_instances=2,
            max_staleness=1,
            **KEEP,
        )
        world = World(schedule, random.Random(seed), num_prompts=NUM_PROMPTS)
        assert world.run().is_complete
        found = conservation(world.entries)
        assert found["adds_up"], found
        assert not found["trained_twice"]
        num_dropped += found["dropped"]
    assert num_dropped, "no history gave anything up"
    assert world.coordinator.version == Version(6)
