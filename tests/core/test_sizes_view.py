"""What the core tells a strategy of parallel sizes, field by field: everything must belong to its own size and its own
kind of round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.test_stopped_trainer import Holding
from tailrace.core import events as ev
from tailrace.core.costs import CostModel
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.fleet.lending import _view as scaling_view
from tailrace.core.fleet.length_history import LengthHistory
from tailrace.core.fleet.parallelism import ParallelismView, SizeView
from tailrace.core.fleet.resizing import _view, engine_size
from tailrace.core.fleet.sizes import KindOfRound, Sizes
from tailrace.core.ids import InstanceId
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Layout, Lending, Parallelism, Stream
from tailrace.core.schedule.lending import places_by_order
from tailrace.core.schedule.parallelism import Division


def test_before_the_first_round_nothing_was_launched_or_preempted() -> None:
    sizes = Sizes()
    assert sizes.num_preempted == 0
    for kind in (sizes.short, sizes.long):
        assert (kind.size, kind.num_launched, kind.num_quiet, kind.num_rounds) == (0, 0, 0, 0)


def costs(number: float) -> CostModel:
    return CostModel(k1=number, k2=0.0, k3=0.0, k4=number)


LAYOUTS = (
    Layout(division=Division(1), first=0, count=4, kv_tokens=100, max_running=3, costs=costs(1), is_measured=True),
    Layout(division=Division(2), first=4, count=2, kv_tokens=220, max_running=7, costs=costs(2)),
    Layout(division=Division(4), first=6, count=1, kv_tokens=500, max_running=15, costs=costs(4), is_measured=True),
)
SIZES = Parallelism(strategy="preemptions", layouts=LAYOUTS, start_s=60.0, wake_s=5.0, parks=True, horizon=10)


def begun(**changes: Any) -> Holding:
    world = Holding(parallelism=SIZES, num_instances=4, max_steps=40, batch_size=4, group_size=2, **changes)
    world.tell(ev.RunStarted(schedule=world.schedule))
    return world


def lengths(*each: int) -> LengthHistory:
    found = LengthHistory()
    for length in each:
        found.add(length, 640, is_cut=False)
    return found


def remembered(rooms: Rooms) -> None:
    """Both kinds of rounds, and the sizes, have different pasts."""
    sizes, loans = rooms.fleet.sizes, rooms.fleet.loans
    sizes.short = KindOfRound(size=1, before=0.1, last=0.2, num_launched=11, num_quiet=1, num_rounds=6)
    sizes.long = KindOfRound(size=2, before=0.3, last=0.4, num_launched=22, num_quiet=2, num_rounds=2)
    sizes.measured[2] = costs(2.5)
    sizes.start_s, sizes.wake_s = 70.0, 3.0
    loans.short, loans.long = lengths(10, 20), lengths(300, 600)
    rooms.fleet.instances[InstanceId(6)].phase = InstancePhase.RELEASED
    rooms.fleet.num_absent -= 1


SIZE_VIEWS = [
    SizeView(
        division=Division(1), num_instances=4, kv_tokens=100, max_running=3, costs=costs(1), is_measured=True,
        change_s=0.0,
    ),
    SizeView(
        division=Division(2), num_instances=2, kv_tokens=220, max_running=7, costs=costs(2.5), is_measured=True,
        change_s=70.0,
    ),
    SizeView(
        division=Division(4), num_instances=1, kv_tokens=500, max_running=15, costs=costs(4), is_measured=True,
        change_s=3.0,
    ),
]  # fmt: skip


@pytest.mark.parametrize("is_long", [False, True])
def test_each_field_is_of_its_own_size_and_kind_of_round(*, is_long: bool) -> None:
    world = begun()
    rooms = world.coordinator.rooms
    remembered(rooms)
    assert rooms.collection.round is not None
    found = _view(rooms, replace(rooms.collection.round, is_long=is_long))
    own = {"size": 2, "before": 0.3, "last": 0.4, "num_launched": 22, "num_quiet": 2, "other_size": 1}
    short = {"size": 1, "before": 0.1, "last": 0.2, "num_launched": 11, "num_quiet": 1, "other_size": 2}
    assert found == ParallelismView(
        **(own if is_long else short),
        sizes=SIZE_VIEWS,
        active=(lengths(300, 600) if is_long else lengths(10, 20)).active(),
        max_length=world.schedule.lending.max_length,
        prompt_length=world.schedule.coordination.prompt_length,
        rounds=(4, 6) if is_long else (8, 2),
        back_s=3.0,
    )


def test_instances_that_end_come_back_with_a_new_start() -> None:
    world = begun()
    rooms = world.coordinator.rooms
    remembered(rooms)
    assert rooms.collection.round is not None
    rooms.schedule = replace(world.schedule, parallelism=replace(SIZES, parks=False))
    assert _view(rooms, rooms.collection.round).back_s == 70.0


def test_a_broken_size_is_not_shown_and_one_that_was_never_measured_is_marked() -> None:
    world = begun()
    rooms = world.coordinator.rooms
    assert rooms.collection.round is not None
    rooms.fleet.sizes.broken[4] = None
    first, second = _view(rooms, rooms.collection.round).sizes
    assert (first.is_measured, second.is_measured, second.size) == (True, False, 2)


def test_the_engine_is_that_of_the_size_in_use() -> None:
    rooms = begun().coordinator.rooms
    assert engine_size(rooms) == (100, 3)
    rooms.fleet.use_size(4, costs(4))
    assert engine_size(rooms) == (500, 15)


def test_lending_counts_the_instances_of_the_size_in_use() -> None:
    """At most half of them may be lent."""
    layouts = tuple(
        replace(layout, places=places_by_order(layout.count, layout.count)) if layout.size == 1 else layout
        for layout in LAYOUTS
    )
    world = begun(
        stream=Stream.ALWAYS,
        lending=Lending(strategy="fixed", places=places_by_order(4, 4)),
        is_reward_streamed=True,
    )
    rooms = world.coordinator.rooms
    rooms.schedule = replace(world.schedule, parallelism=replace(SIZES, layouts=layouts))
    assert scaling_view(rooms).num_instances == 4
    assert len(rooms.fleet.instances) == 7


def test_lengths_are_remembered_for_sizes_alone() -> None:
    world = begun()
    assert world.schedule.lending.strategy == Lending().strategy
    while world.coordinator.version < 2:
        world.advance()
    assert world.coordinator.rooms.fleet.loans.short.ended
