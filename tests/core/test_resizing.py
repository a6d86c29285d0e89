"""Parallel sizes: when the size of a round changes, what instances are asked for then, and random histories of it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from core.histories import (
    Case,
    History,
    cases,
    check_batches,
    check_bound,
    check_conservation,
    held_to,
    lagging_cases,
    lending,
    one_schedule,
    tail_batching,
    until,
)
from core.test_stopped_trainer import Holding
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.fleet.resizing import _expected_rounds
from tailrace.core.fleet.sizes import KindOfRound
from tailrace.core.ids import InstanceId
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import (
    EvalSet,
    Layout,
    Leftovers,
    Limits,
    Parallelism,
    Placement,
    Schedule,
    SharedPlace,
    Stream,
)
from tailrace.core.schedule.lending import places_by_order
from tailrace.core.schedule.parallelism import layouts_by_order
from tailrace.core.schedule.soundness import sound, unsound
from tailrace.observe.costs.prediction import Prediction, SizeCosts
from tailrace.observe.shared_fold.run_fold import RunFold

LIMITS = Limits()


def sizes(*chosen: int, devices: int = 4, initial: int = 1, **changes: Any) -> dict[str, Any]:
    """What a schedule says of these sizes."""
    layouts = layouts_by_order(devices, chosen or (1, 2, 4), initial)
    known = Parallelism(
        **{"strategy": "preemptions", "layouts": layouts, "initial": initial, "horizon": None, **changes}
    )
    return {"parallelism": known, "num_instances": devices // initial}


def resizing(rng: random.Random, **changes: object) -> Schedule:
    """Any schedule with rounds whose size changes. Some of them lend instances."""
    make, devices = rng.choice([one_schedule, tail_batching]), rng.randint(2, 6)
    possible = [size for size in (1, 2, 3, 4) if size <= devices]
    drawn, lends = sorted({1, *rng.sample(possible, 2)}), rng.random() < 0.4
    chosen = sizes(
        *drawn,
        devices=devices,
        initial=1 if lends else rng.choice(drawn),
        strategy=rng.choice(["preemptions", "preemptions", "forecast"]),
        parks=rng.random() < 0.5,
        quiet_rounds=rng.choice([1, 2]),
        horizon=rng.choice([None, None, 5]),
        start_s=rng.choice([0.0, 60.0]),
    )
    if lends:
        lent = lending(rng, devices)
        known: Parallelism = chosen["parallelism"]
        layouts = tuple(replace(each, places=_places(each)) for each in known.layouts)
        chosen |= lent | {"stream": Stream.ALWAYS, "parallelism": replace(known, layouts=layouts)}
        chosen |= {"is_reward_streamed": True, "placement": rng.choice([Placement.COLOCATED, Placement.SHARED])}
    if make is one_schedule:
        chosen |= {"leftovers": rng.choice([each for each in Leftovers if each is not Leftovers.KEEP])}
    limits = Limits(max_restarts=rng.choice([0, 1, 2, 1000, 1000]))
    return make(rng, **{**chosen, "max_steps": rng.randint(3, 9), "limits": limits, **changes})


def _places(layout: Layout) -> tuple[SharedPlace, ...]:
    places = places_by_order(layout.count, layout.count)
    return tuple(replace(each, instances=tuple(layout.first + n for n in each.instances)) for each in places)


def check(found: History) -> None:
    check_sizes(found)
    if not found.verdict.is_complete:
        expected = ["failing reward", "equal scores"]
        if found.schedule.limits.max_restarts < 1000:
            expected.append("no rollout instance is left")
        assert any(words in found.verdict.reason for words in expected)
        return
    check_conservation(found)
    check_batches(found)
    check_bound(found)


def check_sizes(found: History) -> None:
    """Rounds have sizes that exist, work goes to instances of the size of the last round that opened, and the sizes of
    one kind of round change at most once in two of its rounds."""
    known = found.schedule.parallelism
    size, before = known.initial, {True: (known.initial, 2), False: (known.initial, 2)}
    kind = False
    for command in found.commands:
        match command:
            case do.ReturnToSize(parallel_size=size, broken_size=other):
                before |= {each: (size, int(each == kind)) for each, (last, _) in before.items() if last == other}
            case do.OpenRound(is_long=is_long, parallel_size=size):
                kind = is_long
                assert known.layout(size) is not None
                last, num_rounds = before[is_long]
                least = 1 if known.strategy == "forecast" else min(2, known.quiet_rounds)
                assert size == last or num_rounds >= least, "the counts of one round say nothing"
                before[is_long] = (size, 1 if size != last else num_rounds + 1)
            case do.Submit(instance=instance):
                layout = known.layout_of(instance)
                assert layout is not None
                assert layout.size == size
            case do.StartInstance(instance=instance, size=own, devices=devices):
                layout = known.layout_of(instance)
                assert layout is not None
                assert (own, len(devices)) == (layout.size, layout.size)
            case do.StopInstance():
                assert not known.parks


# What a change asks of instances


def grown(*held: type[do.Command], until_size: int = 2, make: type[Holding] | None = None, **changes: Any) -> Holding:
    """The world at the moment when a round opens with the larger size."""
    world = (make or Rising)(*held, **{**SMALL, **sizes(1, 2, devices=2), **changes})
    world.tell(ev.RunStarted(schedule=world.schedule))
    until(world, lambda: world.coordinator.rooms.fleet.parallel_size == until_size)
    return world


SMALL: dict[str, Any] = {"batch_size": 2, "max_steps": 12, "save_interval": None, "max_in_flight": 8}


class Rising(Holding):
    """More responses are preempted in each round than in the one before, until the third; then none."""

    def preempt(self, instance: InstanceId) -> int:
        step = self.coordinator.version
        self.num_preempted[instance] = [0, 40, 90, 90][min(step, 3)]
        return self.num_preempted[instance]


def last_commands(world: Holding, *kinds: type[do.Command]) -> list[do.Command]:
    return [command for command in world.entries[-1].commands if isinstance(command, kinds)]


def phases(world: Holding) -> list[InstancePhase]:
    return [each.phase for each in world.coordinator.rooms.fleet.instances.values()]


def test_at_first_the_instances_of_the_first_size_start_and_the_others_are_parked() -> None:
    world = Holding(**{**SMALL, **sizes(1, 2, 4)})
    world.tell(ev.RunStarted(schedule=world.schedule))
    starts = last_commands(world, do.StartInstance)
    assert [(c.instance, c.size, c.devices) for c in starts if isinstance(c, do.StartInstance)] == [
        (0, 1, (0,)),
        (1, 1, (1,)),
        (2, 1, (2,)),
        (3, 1, (3,)),
    ]
    assert [each.is_parked for each in world.coordinator.rooms.fleet.instances.values()] == [False] * 4 + [True] * 3


def test_instances_of_the_old_size_end_before_one_of_the_new_size_starts() -> None:
    world = grown(do.StopInstance)
    assert phases(world) == [InstancePhase.STOPPING, InstancePhase.STOPPING, InstancePhase.ABSENT]
    assert not last_commands(world, do.StartInstance)
    world.answer_held()
    assert not last_commands(world, do.StartInstance), "one of them still stands there"
    waits = [wait.what for wait in world.coordinator.waits()]
    assert "parked instance 1 to end" in waits
    world.answer_held()
    [start] = last_commands(world, do.StartInstance)
    assert isinstance(start, do.StartInstance)
    assert (start.instance, start.size, start.devices) == (2, 2, (0, 1))


def test_parked_instances_keep_their_processes_and_wake_when_their_size_returns() -> None:
    chosen = sizes(1, 2, devices=2, parks=True, quiet_rounds=2)
    world = grown(**chosen)
    until(world, lambda: InstancePhase.STARTING in phases(world))
    assert phases(world)[:2] == [InstancePhase.RELEASED, InstancePhase.RELEASED]
    until(world, lambda: world.coordinator.rooms.fleet.parallel_size == 1)
    until(world, lambda: phases(world)[0] is InstancePhase.READY)
    assert phases(world)[2] is InstancePhase.RELEASED
    starts = [c for entry in world.entries for c in entry.commands if isinstance(c, do.StartInstance)]
    assert [start.instance for start in starts] == [0, 1, 2], "nobody started twice"
    assert not [c for entry in world.entries for c in entry.commands if isinstance(c, do.StopInstance)]


def test_an_instance_that_ended_starts_again_when_its_size_returns() -> None:
    world = grown(**sizes(1, 2, devices=2, quiet_rounds=2))
    until(world, lambda: world.coordinator.rooms.fleet.parallel_size == 1)
    until(world, lambda: phases(world)[0] is InstancePhase.READY)
    starts = [c for entry in world.entries for c in entry.commands if isinstance(c, do.StartInstance)]
    assert [start.instance for start in starts] == [0, 1, 2, 0, 1]
    assert len({start.incarnation for start in starts}) == 5


def test_a_parked_instance_that_dies_is_not_started_and_does_not_pull() -> None:
    world = grown(**sizes(1, 2, devices=2, parks=True, quiet_rounds=99))
    until(world, lambda: phases(world)[2] is InstancePhase.READY)
    world.lose(InstanceId(0), "it was killed")
    assert not last_commands(world, do.StartInstance, do.PullWeights)
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete
    assert phases(world)[0] is InstancePhase.ABSENT


def test_the_run_fails_when_no_instance_of_any_size_can_start() -> None:
    limits = replace(LIMITS, max_restarts=1)
    world = grown(limits=limits, **sizes(1, 2, devices=2, parks=True))
    world.held = (do.Submit, do.FinishStep, do.Accumulate)
    seen = set()
    for _ in range(200):
        if world.verdict is not None:
            break
        seen.add(world.coordinator.rooms.fleet.parallel_size)
        working = [each.id for each in world.coordinator.rooms.fleet.instances.values() if each.accepts_work]
        if working:
            world.lose(working[0], "it was killed")
        else:
            world.advance()
    assert world.verdict is not None
    assert "no rollout instance is left" in world.verdict.reason
    assert seen == {1, 2}, "it returned to the size that had worked"


class Climbing(Rising):
    """More and more responses are preempted, without end."""

    def preempt(self, instance: InstanceId) -> int:
        self.num_preempted[instance] = 40 * 2**self.coordinator.version
        return self.num_preempted[instance]


def broken_off(*losses: str, make: type[Holding] | None = None, max_restarts: int = 0) -> Holding:
    """The world in which the instance of size 2 could not be started, for these reasons."""
    limits, chosen = replace(LIMITS, max_restarts=max_restarts), sizes(1, 2, devices=2, parks=True, quiet_rounds=99)
    world = grown(make=make, limits=limits, **chosen)
    world.held = (do.StartInstance,)
    for reason in losses:
        until(world, lambda: phases(world)[2] is InstancePhase.STARTING)
        world.tell(ev.InstanceLost(instance=InstanceId(2), reason=reason))
    return world


def test_the_run_returns_to_the_size_that_worked_if_another_one_cannot_start() -> None:
    world = broken_off("its KV cache does not fit", "nor now", make=Climbing, max_restarts=1)
    assert world.verdict is None
    assert last_commands(world, do.ReturnToSize) == [do.ReturnToSize(parallel_size=1, broken_size=2, reason="nor now")]
    assert world.coordinator.rooms.fleet.parallel_size == 1
    until(world, lambda: world.verdict is not None)
    assert world.verdict is not None
    assert world.verdict.is_complete
    opened = [c.parallel_size for entry in world.entries for c in entry.commands if isinstance(c, do.OpenRound)]
    assert opened.count(2) == 1, "it is not tried again"


def test_a_broken_size_may_be_tried_again_when_the_run_is_continued() -> None:
    world = broken_off("its KV cache does not fit")
    fleet = world.coordinator.rooms.fleet
    assert list(fleet.sizes.broken) == [2]
    world.held = ()
    world.crash_and_resume()
    assert not world.coordinator.rooms.fleet.sizes.broken


def test_the_way_back_stays_when_the_other_size_has_worked_for_a_moment() -> None:
    world = grown(limits=replace(LIMITS, max_restarts=1), **sizes(1, 2, devices=2, parks=True, quiet_rounds=99))
    fleet = world.coordinator.rooms.fleet
    until(world, lambda: list(fleet.sizes.worked) == [1, 2])
    world.held = (do.StartInstance, do.FinishStep, do.Accumulate)
    for _ in range(2):
        until(world, lambda: phases(world)[2] is not InstancePhase.ABSENT)
        world.running.pop(InstanceId(2), None)
        world.tell(ev.InstanceLost(instance=InstanceId(2), reason="NCCL"))
    assert world.verdict is None
    assert fleet.parallel_size == 1


def test_after_a_return_costs_and_instances_are_those_of_the_size_that_works() -> None:
    world = broken_off("its KV cache does not fit")
    costs = {size: SizeCosts(NOTHING_KNOWN, 8) for size in (1, 2)}
    prediction = Prediction(costs=NOTHING_KNOWN, prompt_length=1, max_running=8, size=1, sizes=costs)
    run = RunFold()
    for entry in world.entries:
        prediction.feed(entry)
        for _ in run.feed(entry):
            pass
    assert prediction.size == world.coordinator.rooms.fleet.parallel_size == 1
    assert [run.state.instances[InstanceId(n)].is_gone for n in (0, 1)] == [False, False]


def test_the_run_fails_when_its_only_size_is_gone_although_instances_of_others_never_were_there() -> None:
    world = Holding(**{**SMALL, **sizes(1, 2, devices=2), "limits": replace(LIMITS, max_restarts=0)})
    world.tell(ev.RunStarted(schedule=world.schedule))
    until(world, lambda: phases(world)[:2] == [InstancePhase.READY] * 2)
    for number in (0, 1):
        world.lose(InstanceId(number), "it was killed")
    assert world.verdict is not None
    assert "no rollout instance is left" in world.verdict.reason


def test_preemptions_on_the_old_size_do_not_count_for_the_new_one() -> None:
    world = grown(do.Interrupt, leftovers=Leftovers.RESUME, launch_prompts=4, max_staleness=None)
    fleet = world.coordinator.rooms.fleet
    number = next(each.id for each in fleet.instances.values() if each.is_parked and each.running)
    told = ev.RolloutReported(instance=number, version=world.versions[number], num_preemptions=500)
    world.say(number, told)
    assert fleet.sizes.num_preempted == 0


def test_a_response_that_ends_on_the_old_size_says_nothing_of_the_new_one() -> None:
    world = grown(do.Interrupt, leftovers=Leftovers.RESUME, launch_prompts=4, max_staleness=None)
    fleet = world.coordinator.rooms.fleet
    number = next(each.id for each in fleet.instances.values() if each.is_parked and each.running)
    response = next(iter(fleet.instances[number].running))
    ended = ev.Finished(response=response, length=world.running[number].pop(response) + 1, finish=Finish.STOP)
    fleet.sizes.worked.clear()
    world.say(number, ev.RolloutReported(instance=number, version=world.versions[number], finished=(ended,)))
    assert (fleet.parallel_size, list(fleet.sizes.worked)) == (2, [1])


def test_one_instance_that_cannot_start_does_not_change_the_size_while_another_works() -> None:
    limits = replace(LIMITS, max_restarts=0)
    world = grown(limits=limits, **sizes(1, 2, devices=4, quiet_rounds=99))
    fleet = world.coordinator.rooms.fleet
    until(world, lambda: phases(world)[4:] == [InstancePhase.READY] * 2)
    world.lose(InstanceId(4), "it was killed")
    world.tell(ev.TimerFired())
    assert fleet.parallel_size == 2
    assert phases(world)[4] is InstancePhase.ABSENT


def test_a_policy_is_told_how_many_rounds_of_each_kind_are_expected() -> None:
    chosen = sizes(1, 2, devices=2, horizon=10)
    world = Holding(**{**SMALL, **chosen, "max_steps": 100})
    world.tell(ev.RunStarted(schedule=world.schedule))
    rooms = world.coordinator.rooms
    round = rooms.collection.round
    assert round is not None
    assert _expected_rounds(rooms, round, 0, 0) == (10, 0), "nothing else has come"
    assert _expected_rounds(rooms, round, 3, 1) == (8, 2)
    assert _expected_rounds(rooms, round, 0, 4) == (2, 8)
    last = replace(round, number=97)
    assert _expected_rounds(rooms, last, 0, 0) == (3, 0), "the run has three steps left"


def test_an_instance_of_the_old_size_that_is_still_starting_is_not_waited_for() -> None:
    """Nor does its end count as a loss: it may start again when its size returns."""
    world = Rising(**{**SMALL, **sizes(1, 2, devices=2, quiet_rounds=2), "limits": replace(LIMITS, max_restarts=0)})
    world.tell(ev.RunStarted(schedule=world.schedule))
    fleet = world.coordinator.rooms.fleet
    until(world, lambda: fleet.instances[InstanceId(0)].num_preempted == 90)
    until(world, lambda: not fleet.instances[InstanceId(0)].running)
    fleet.instances[InstanceId(0)].losses.count = -1  # so that it is started once more
    world.held = (do.StartInstance,)
    world.lose(InstanceId(0), "it was killed")
    assert phases(world)[0] is InstancePhase.STARTING
    until(world, lambda: fleet.parallel_size == 2)
    assert [c for c in world.entries[-1].commands if isinstance(c, do.KillInstance)] == [
        do.KillInstance(instance=InstanceId(0), reason="its parallel size is no longer used")
    ]
    before = fleet.instances[InstanceId(0)].losses.count
    world.tell(ev.InstanceLost(instance=InstanceId(0), reason="it was killed"))
    assert (phases(world)[0], fleet.instances[InstanceId(0)].losses.count) == (InstancePhase.ABSENT, before)


def test_parked_instances_wake_while_the_trainer_works_unless_they_share_its_turns() -> None:
    chosen = sizes(1, 2, devices=2, parks=True, quiet_rounds=2)
    known: Parallelism = chosen["parallelism"]
    ahead = {"max_staleness": 1, "rounds_ahead": 1, "parallelism": known, "num_instances": 2}
    world = grown(**ahead)
    until(world, lambda: world.coordinator.rooms.fleet.parallel_size == 1)
    world.held = (do.FinishStep, do.Accumulate)
    until(world, lambda: phases(world)[0] is InstancePhase.READY)
    assert world.coordinator.rooms.fleet.parallel_size == 1


def test_preemptions_of_evaluations_do_not_count() -> None:
    evaluated = (EvalSet(name="heldout", num_prompts=4, group_size=2),)
    world = Holding(**{**SMALL, **sizes(1, 2, devices=2), "eval_sets": evaluated, "eval_interval": 1})
    world.tell(ev.RunStarted(schedule=world.schedule))
    rooms = world.coordinator.rooms

    def only_evaluates(number: InstanceId) -> bool:
        running = rooms.fleet.instances[number].running
        return bool(running) and not any(rooms.responses.is_training(r) for r in running)

    until(world, lambda: any(only_evaluates(InstanceId(n)) for n in (0, 1)))
    [number, *_] = [InstanceId(n) for n in (0, 1) if only_evaluates(InstanceId(n))]
    before = rooms.fleet.sizes.num_preempted
    told = ev.RolloutReported(instance=number, version=rooms.fleet.version_at(number), num_preemptions=9)
    world.say(number, told)
    assert rooms.fleet.sizes.num_preempted == before
    assert rooms.fleet.instances[number].num_preempted == 9


def test_an_instance_with_more_devices_has_more_responses_at_the_same_time() -> None:
    chosen = sizes(1, 2, devices=2)
    known: Parallelism = chosen["parallelism"]
    layouts = tuple(replace(each, max_in_flight=each.size) for each in known.layouts)
    world = grown(**{**chosen, "parallelism": replace(known, layouts=layouts), "max_in_flight": 1})
    submits = [c for entry in world.entries for c in entry.commands if isinstance(c, do.Submit)]
    assert max(len(submit.dispatches) for submit in submits) == 1
    until(world, lambda: bool(last_commands(world, do.Submit)))
    assert [len(c.dispatches) for c in last_commands(world, do.Submit) if isinstance(c, do.Submit)] == [2]


def test_instances_of_sizes_are_neither_added_nor_retired_one_by_one() -> None:
    world = Holding(**{**SMALL, **sizes(1, 2, devices=2)})
    world.tell(ev.RunStarted(schedule=world.schedule))
    for event in (ev.InstanceAdded(instance=InstanceId(7)), ev.InstanceRetired(instance=InstanceId(0))):
        before = world.coordinator.num_refused_reports
        world.tell(event)
        assert world.coordinator.num_refused_reports == before + 1
    assert len(world.coordinator.rooms.fleet.instances) == 3


# What is remembered


def test_preemptions_are_counted_from_the_start_of_each_instance() -> None:
    world = Holding(do.Submit, **{**SMALL, **sizes(1, 2, devices=2)})
    world.tell(ev.RunStarted(schedule=world.schedule))
    fleet = world.coordinator.rooms.fleet
    until(world, lambda: bool(fleet.instances[InstanceId(0)].running))

    def report(count: int) -> None:
        instance = InstanceId(0)
        told = ev.RolloutReported(instance=instance, version=fleet.version_at(instance), num_preemptions=count)
        world.say(instance, told)

    report(5)
    report(7)
    report(6)
    assert fleet.sizes.num_preempted == 7
    world.lose(InstanceId(0), "it was killed")
    until(world, lambda: bool(fleet.instances[InstanceId(0)].running))
    report(2)
    assert fleet.sizes.num_preempted == 9


def test_a_change_forgets_the_counts_of_the_old_size_and_each_kind_of_round_has_its_own() -> None:
    kind = KindOfRound(size=1)
    kind.round_ended(10, 100)
    kind.round_ended(0, 50)
    kind.round_ended(0, 50)
    assert (kind.before, kind.last, kind.num_quiet, kind.num_launched) == (0.0, 0.0, 2, 50)
    kind.change(2)
    assert (kind.size, kind.before, kind.last, kind.num_quiet, kind.num_rounds) == (2, None, None, 0, 3)


def test_costs_that_are_measured_belong_to_their_size() -> None:
    chosen = sizes(1, 2, devices=2, quiet_rounds=2)
    known: Parallelism = chosen["parallelism"]
    layouts = tuple(replace(each, costs=CostModel(k1=0.0, k2=0.0, k3=0.0, k4=each.size + 1)) for each in known.layouts)
    world = grown(**{**chosen, "parallelism": replace(known, layouts=layouts)})
    costs = CostModel(k1=0.0, k2=1.0, k3=2.0, k4=3.0)
    world.tell(ev.CostsMeasured(costs=costs, error=0.5, fitted_error=0.1, size=2))
    assert world.coordinator.costs == costs
    until(world, lambda: world.coordinator.rooms.fleet.parallel_size == 1)
    assert world.coordinator.costs != costs
    assert world.coordinator.rooms.fleet.sizes.measured == {2: costs}
    world.tell(ev.CostsMeasured(costs=costs, error=0.5, fitted_error=0.1, size=2))
    assert world.coordinator.costs != costs, "the size in use is another one"


def test_the_seconds_of_starts_and_of_waking_are_measured() -> None:
    world = grown(**sizes(1, 2, devices=2, parks=True, quiet_rounds=2))
    world.held = (do.StartInstance,)
    sizes_of_run = world.coordinator.rooms.fleet.sizes
    until(world, lambda: bool(world.aside))
    world.now += 50.0
    world.answer_held()
    assert sizes_of_run.start_s is not None
    assert sizes_of_run.start_s == pytest.approx(50.0)
    assert sizes_of_run.wake_s is None
    until(world, lambda: world.coordinator.rooms.fleet.parallel_size == 1 and phases(world)[0] is InstancePhase.READY)
    assert sizes_of_run.wake_s == 0.1


# Settings


def test_layouts_stand_on_devices_in_order_and_the_first_size_has_the_first_numbers() -> None:
    found = layouts_by_order(6, (4, 1, 2), 2)
    assert [(each.size, each.first, each.count) for each in found] == [(1, 3, 6), (2, 0, 3), (4, 9, 1)]
    assert found[0].devices_of(4) == (1,)
    assert found[1].devices_of(2) == (4, 5)
    with pytest.raises(ValueError, match="parallel size 4 does not fit on 3 devices"):
        layouts_by_order(3, (1, 4), 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layouts": (), "initial": 1, "strategy": "preemptions"}, "give at least two parallel sizes"),
        ({"layouts": layouts_by_order(4, (1, 2), 2), "initial": 2}, "the first 4 instances start"),
    ],
)
def test_sizes_that_cannot_work_are_refused(changes: dict[str, Any], sentence: str) -> None:
    given = sizes(1, 2)
    known = replace(given["parallelism"], **changes)
    schedule = Schedule(
        train_source="train", batch_size=1, group_size=1, max_steps=1, num_instances=4, parallelism=known
    )
    assert any(sentence in each for each in unsound(schedule))


def test_keep_has_no_rounds_so_its_size_cannot_change() -> None:
    kept = Schedule(
        train_source="train", batch_size=1, group_size=1, max_steps=1, leftovers=Leftovers.KEEP, **sizes(1, 2)
    )
    assert any("'keep' has no rounds: leave it fixed" in each for each in unsound(kept))
    with pytest.raises(ValueError, match="leave it fixed"):
        sound(kept)


@pytest.mark.parametrize(
    "changes",
    [
        {"initial": 4},
        {"horizon": 0},
        {"rise": 0.9},
        {"least_rise": -0.1},
        {"quiet_rounds": 0},
        {"start_s": -1.0},
        {"wake_s": -1.0},
    ],
)
def test_numbers_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"layouts must|horizon must|at least"):
        Parallelism(**{"layouts": layouts_by_order(2, (1, 2), 1), **changes})


# Random histories


@held_to(40)
@given(cases(resizing, 0.0, 0.02, 0.05))
def test_any_history_of_parallel_sizes_reaches_its_end(case: Case) -> None:
    """The world checks that instances of two sizes never hold memory on the same device."""
    check(case.run(checks=True))


@held_to(15)
@given(lagging_cases(resizing, filters_equal_scores=False))
def test_slow_and_lost_news_harms_no_change_of_the_size(case: Case) -> None:
    check(case.run_lagging(checks=True))


@pytest.mark.long
@pytest.mark.timeout(1500)
@held_to(400)
@given(cases(resizing, 0.0, 0.02, 0.05))
def test_many_histories_of_parallel_sizes_reach_their_end(case: Case) -> None:
    check(case.run(checks=True))


@pytest.mark.long
@pytest.mark.timeout(1500)
@held_to(200)
@given(lagging_cases(resizing, filters_equal_scores=False))
def test_slow_and_lost_news_harms_none_of_many_changes_of_the_size(case: Case) -> None:
    check(case.run_lagging(checks=True))
