"""Lending: when it is considered, what it asks of instances, which replicas train, and how instances come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.histories import until
from core.test_stopped_trainer import Holding
from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.length_history import NUM_BINS, LengthHistory, bin_of
from tailrace.core.fleet.scaling import PlaceView, ScalingView
from tailrace.core.ids import InstanceId
from tailrace.core.schedule import Coordination, Leftovers, Lending, Placement, Schedule, SharedPlace, Stream
from tailrace.core.schedule.lending import joined_places, places_by_order
from tailrace.core.schedule.soundness import unsound
from tailrace.policies.scaling.at_share import LentAtShare
from tailrace.policies.scaling.halves import least_busy
from tailrace.policies.scaling.kv_peak import LentAtKvPeak
from tailrace.policies.strategies import policies_of

TWO = (SharedPlace(instances=(0,), replicas=(0,)), SharedPlace(instances=(1,), replicas=(1, 2)))
NO_LIMITS = Coordination()
LENT = Lending(strategy="fixed", places=TWO, at=0.2, max_length=100)
GIVEN: dict[str, Any] = {
    "batch_size": 10,
    "num_instances": 2,
    "stream": Stream.ALWAYS,
    "save_interval": None,
    "max_steps": 2,
    "lending": LENT,
    "max_in_flight": 8,
}


def begun(*held: type[do.Command], **changes: object) -> Holding:
    world = Holding(*held, **{**GIVEN, **changes})
    world.tell(ev.RunStarted(schedule=world.schedule))
    return world


def has_lent(world: Holding) -> bool:
    return world.coordinator.rooms.fleet.has_lent


def lent(world: Holding) -> list[Instance]:
    return [each for each in world.coordinator.rooms.fleet.instances.values() if each.is_lent]


def sent(world: Holding, kind: type[Any]) -> list[Any]:
    return [c for entry in world.entries for c in entry.commands if isinstance(c, kind)]


def num_complete(world: Holding) -> int:
    return len(world.coordinator.rooms.collection.complete)


def lending(*held: type[do.Command], **changes: object) -> tuple[Holding, Instance]:
    """The world at the moment when an instance is lent, and the instance."""
    world = begun(*held, **changes)
    until(world, lambda: has_lent(world))
    [instance] = lent(world)
    return world, instance


# When


def test_an_instance_is_lent_as_soon_as_enough_of_the_batch_is_complete_and_its_responses_are_interrupted() -> None:
    world, instance = lending(lending=replace(LENT, at=0.4))
    assert num_complete(world) == 4
    interrupts = [c for c in world.entries[-1].commands if isinstance(c, do.Interrupt)]
    assert [c.instance for c in interrupts] == ([instance.id] if instance.running else [])
    assert instance.running.keys() == instance.stopping.keys()


@pytest.mark.parametrize(("at", "count"), [(0.4, 4), (0.45, 5), (0.5, 5)])
def test_the_fixed_strategy_waits_for_its_part_of_the_batch(at: float, count: int) -> None:
    world, _ = lending(lending=replace(LENT, at=at))
    assert num_complete(world) == count


def test_when_more_than_half_is_complete_nothing_is_lent_any_more() -> None:
    world = begun(lending=replace(LENT, at=0.55))
    until(world, lambda: world.verdict is not None)
    assert not sent(world, do.ReleaseMemory)


@pytest.mark.parametrize("places", [(), TWO[:1]])
def test_without_a_second_place_nothing_is_lent(places: tuple[SharedPlace, ...]) -> None:
    world = begun(lending=replace(LENT, places=places))
    until(world, lambda: world.verdict is not None)
    assert not sent(world, do.ReleaseMemory)


def test_nothing_is_lent_twice_in_a_round() -> None:
    world = begun()
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete
    assert len(sent(world, do.ReleaseMemory)) == 2, "once in each of two rounds"


def test_a_round_that_launches_more_than_it_trains_lends_nothing() -> None:
    world = begun(leftovers=Leftovers.DROP, launch_prompts=12)
    until(world, lambda: world.verdict is not None)
    assert not sent(world, do.ReleaseMemory)


def test_a_round_with_additional_prompts_for_the_filter_lends_nothing() -> None:
    rooms = begun().coordinator.rooms
    assert rooms.collection.progress == (0, 0, 10)
    rooms.collection.round.size = 12  # type: ignore[union-attr]
    assert rooms.collection.progress is None


def test_with_once_nothing_is_lent_after_the_one_piece() -> None:
    world = begun(stream=Stream.ONCE, stream_groups=1, lending=replace(LENT, at=0.4))
    until(world, lambda: world.coordinator.version == 1)
    assert len([piece for piece in sent(world, do.Accumulate) if piece.version == 0]) == 2
    assert not sent(world, do.ReleaseMemory)


# What follows


def test_a_lent_instance_gets_no_work_and_releases_its_memory_when_its_responses_are_reported() -> None:
    world, instance = lending(do.Accumulate)
    until(world, lambda: instance.phase is InstancePhase.RELEASED)
    assert sent(world, do.ReleaseMemory) == [do.ReleaseMemory(instance=instance.id)]
    at = len(world.entries)
    until(world, lambda: world.coordinator.rooms.training.num_batches == 1)
    later = [c for entry in world.entries[at:] for c in entry.commands]
    assert not [c for c in later if isinstance(c, do.Submit | do.PullWeights) and c.instance == instance.id]


def test_pieces_go_to_the_replicas_of_the_lent_place_and_the_rest_to_all() -> None:
    world, instance = lending()
    [place] = [place for place in TWO if instance.id in place.instances]
    until(world, lambda: world.coordinator.version == 1)
    pieces = [piece for piece in sent(world, do.Accumulate) if piece.version == 0]
    released = next(i for i, e in enumerate(world.entries) if isinstance(e.event, ev.MemoryReleased))
    later = [c for entry in world.entries[released:] for c in entry.commands if isinstance(c, do.Accumulate)]
    assert {piece.replicas for piece in later if piece.version == 0} <= {place.replicas, ()}
    assert place.replicas in {piece.replicas for piece in later}
    assert pieces[-1].replicas == ()


def test_while_an_instance_is_leaving_no_piece_is_sent() -> None:
    world, _ = lending(do.ReleaseMemory)
    count = len(sent(world, do.Accumulate))
    until(world, lambda: num_complete(world) >= 6)
    assert len(sent(world, do.Accumulate)) == count
    world.held = ()
    world.answer_held()
    assert sent(world, do.Accumulate)[-1].replicas


def test_colocated_training_streams_only_on_what_was_lent() -> None:
    world = begun(placement=Placement.COLOCATED)
    until(world, lambda: world.verdict is not None)
    for version in (0, 1):
        pieces = [piece for piece in sent(world, do.Accumulate) if piece.version == version]
        assert len(pieces) > 1
        assert all(piece.replicas for piece in pieces[:-1])
        assert pieces[-1].replicas == ()


def test_an_instance_comes_back_with_the_next_version() -> None:
    world, instance = lending()
    until(world, lambda: world.coordinator.version == 1)
    assert not instance.is_lent
    until(world, lambda: instance.phase is InstancePhase.READY)
    assert instance.version == 1


def test_an_instance_with_nothing_to_migrate_is_lent_too() -> None:
    world = begun(max_in_flight=1, group_size=1)
    until(world, lambda: has_lent(world) and bool(sent(world, do.ReleaseMemory)))
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete


def test_a_lent_instance_that_is_lost_is_not_started_before_the_step_is_taken() -> None:
    world, instance = lending(do.FinishStep)
    until(world, lambda: instance.phase is InstancePhase.RELEASED)
    world.lose(instance.id, "it was killed")
    starts = len(sent(world, do.StartInstance))
    until(world, lambda: bool(world.aside))
    assert len(sent(world, do.StartInstance)) == starts
    world.held = ()
    world.answer_held()
    assert len(sent(world, do.StartInstance)) == starts + 1


@pytest.mark.parametrize("version", [0, 1])
def test_an_instance_is_taken_back_if_the_others_are_gone_for_good(version: int) -> None:
    """In the first step nothing is published that it could pull: it is started again."""
    world = begun()
    until(world, lambda: world.coordinator.version == version and has_lent(world))
    [mine] = lent(world)
    [other] = [each for each in world.coordinator.rooms.fleet.instances.values() if not each.is_lent]
    until(world, lambda: mine.phase is InstancePhase.RELEASED and not world.coordinator.rooms.training.is_stepping)
    other.losses.count = world.coordinator.rooms.run.limits.max_restarts
    world.lose(other.id, "it was killed")
    until(world, lambda: not has_lent(world))
    assert not mine.is_lent
    assert len(sent(world, do.KillInstance)) == (version == 0)
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete


def test_an_instance_that_is_added_on_devices_that_are_lent_waits_for_the_step() -> None:
    world, instance = lending(do.FinishStep)
    until(world, lambda: instance.phase is InstancePhase.RELEASED)
    world.tell(ev.InstanceRetired(instance=instance.id))
    stop = next(c for c in world.open if isinstance(c, do.StopInstance))
    world.open.remove(stop)
    world.say(instance.id, ev.InstanceStopped(instance=instance.id))
    starts = len(sent(world, do.StartInstance))
    world.tell(ev.InstanceAdded(instance=instance.id))
    assert len(sent(world, do.StartInstance)) == starts + (not has_lent(world))


def test_a_continued_run_has_lent_nothing_and_lends_nothing_in_the_same_round() -> None:
    world, _ = lending()
    world.crash_and_resume()
    assert not has_lent(world)
    assert not lent(world)
    count = len(sent(world, do.ReleaseMemory))
    until(world, lambda: world.coordinator.version == 1)
    assert len(sent(world, do.ReleaseMemory)) == count
    until(world, lambda: world.verdict is not None)
    assert world.verdict.is_complete


# Lengths


def test_final_lengths_follow_from_those_that_ended_and_those_that_were_cut() -> None:
    known = LengthHistory()
    assert known.final_lengths(640) == [640.0] * NUM_BINS, "nothing is known"
    for length in (5, 5, 315):
        known.add(length, 640, is_cut=False)
    found = known.final_lengths(640)
    assert found[0] == pytest.approx((2 * 10 + 320) / 3), "the upper ends of the bins"
    assert found[1] == found[31] == 320.0
    assert found[32] == 640.0, "none has come so far"


def test_a_response_that_was_cut_counts_as_longer() -> None:
    ended, cut = LengthHistory(), LengthHistory()
    for known, is_cut in ((ended, False), (cut, True)):
        known.add(5, 640, is_cut=False)
        known.add(5, 640, is_cut=is_cut)
    assert ended.final_lengths(640)[0] == 10.0
    assert cut.final_lengths(640)[0] == pytest.approx(0.5 * 10 + 0.5 * 640)


def test_later_rounds_count_more() -> None:
    known, newest = LengthHistory(), LengthHistory()
    known.add(5, 640, is_cut=False)
    newest.add(635, 640, is_cut=False)
    newest.add(5, 640, is_cut=True)
    known.take_over(newest)
    assert known.ended == {0: 0.5, 63: 1.0}
    assert known.cut == {0: 1.0}
    assert known.final_lengths(640)[63] == 640.0


def test_lengths_have_bins_up_to_the_longest() -> None:
    assert [bin_of(length, 128) for length in (0, 1, 2, 127, 128, 500)] == [0, 0, 1, 63, 63, 63]
    assert bin_of(7, 0) == NUM_BINS - 1


def test_a_run_keeps_the_lengths_of_training_responses_by_the_kind_of_their_round() -> None:
    world = begun(lending=replace(LENT, strategy="kv-peak"))
    until(world, lambda: num_complete(world) > 3)
    loans = world.coordinator.rooms.fleet.loans
    assert sum(loans.current.ended.values()) >= 4.0
    assert not loans.short.ended, "what has ended in this round says nothing of what has not"
    until(world, lambda: world.coordinator.version == 1)
    assert sum(loans.short.ended.values()) == 10.0
    assert not loans.long.ended
    assert codec.decode(type(loans), codec.encode(loans)) == loans


def test_in_its_first_round_kv_peak_expects_every_response_to_become_the_longest() -> None:
    engine = Coordination(kv_tokens=150, max_running=0, prompt_length=0)
    world = begun(lending=replace(LENT, strategy="kv-peak"), coordination=engine, max_in_flight=20)
    until(world, lambda: world.coordinator.version == 1)
    assert not sent(world, do.ReleaseMemory), "two at 100 tokens do not fit into 150"
    roomy = begun(lending=replace(LENT, strategy="kv-peak"), coordination=replace(engine, kv_tokens=1000))
    until(roomy, lambda: roomy.coordinator.version == 1)
    assert sent(roomy, do.ReleaseMemory)


def test_aborted_responses_count_in_their_own_round_once_also_those_that_waited() -> None:
    given = {"leftovers": Leftovers.DROP, "launch_prompts": 14, "group_size": 1}
    world = begun(lending=replace(LENT, strategy="kv-peak"), **given)
    until(world, lambda: world.coordinator.rooms.training.num_batches == 1)
    loans = world.coordinator.rooms.fleet.loans
    assert not loans.current.ended
    assert not loans.current.cut
    aborted = [r for c in sent(world, do.Abort) for r in c.responses]
    assert 0 < sum(loans.short.cut.values()) <= len(aborted)
    before = dict(loans.short.cut)
    until(world, lambda: world.coordinator.version == 1)
    assert loans.short.cut == before, "the news of the abort adds nothing"


def test_without_a_policy_that_reads_them_no_lengths_are_kept() -> None:
    world = begun()
    until(world, lambda: world.coordinator.version == 1)
    assert not world.coordinator.rooms.fleet.loans.short.ended


# Strategies


def view(
    *tokens: int,
    progress: float = 0.4,
    final: tuple[float, ...] = (),
    ready: int | None = None,
    engine: Coordination = NO_LIMITS,
) -> ScalingView:
    places = [PlaceView(instances=(InstanceId(i),), num_tokens=count) for i, count in enumerate(tokens)]
    numbers = [InstanceId(number) for number in range(len(tokens) if ready is None else ready)]
    return ScalingView(
        progress=progress,
        places=places,
        num_instances=len(tokens),
        ready=frozenset(numbers),
        final_lengths=final,
        costs=NOTHING_KNOWN,
        kv_tokens=engine.kv_tokens,
        max_running=engine.max_running,
        prompt_length=engine.prompt_length,
    )


def test_half_of_the_instances_are_lent_the_least_busy_first() -> None:
    assert list(least_busy(view(40, 10, 30, 20), 0.5)) == [1, 3]
    assert list(least_busy(view(40, 10, 30), 0.5)) == [1], "not more than half"
    assert list(least_busy(view(7, 7), 0.5)) == [0], "of equals the first"
    assert list(least_busy(view(10, 20), 0.4)) == []


def test_somebody_who_accepts_work_is_left() -> None:
    assert list(least_busy(view(10, 20, ready=1), 0.5)) == [1], "the first would leave nobody"


def test_kv_peak_lends_when_all_that_is_left_fits_into_the_others() -> None:
    engine = Coordination(kv_tokens=100, max_running=3, prompt_length=10)
    policy = LentAtKvPeak(0.5)
    assert policy.choose(view(5, 6, final=(40.0, 40.0), engine=engine)) == [0]
    assert not policy.choose(view(5, 6, final=(40.0, 41.0), engine=engine)), "one token too many"
    assert not policy.choose(view(5, 6, final=(1.0,) * 4, engine=engine)), "too many at once"
    assert policy.choose(view(5, 6, final=(1e9,))) == [0], "no limits are known"


def test_fixed_lends_from_its_part_on() -> None:
    assert not LentAtShare(0.4, 0.5).choose(view(5, 6, progress=0.39))
    assert LentAtShare(0.4, 0.5).choose(view(5, 6, progress=0.4)) == [0]


# Settings


def test_places_are_joined_by_the_devices_they_share() -> None:
    found = joined_places([{"a"}, {"b"}, {"c"}, {"d"}], [{"a", "b"}, {"c", "d"}])
    assert [(place.instances, place.replicas) for place in found] == [((0, 1), (0,)), ((2, 3), (1,))]
    assert len(joined_places([{"a", "b"}, {"b", "c"}], [{"a"}, {"c"}])) == 1
    assert joined_places([{"a"}, {"b"}], [{"a"}, {"c"}]) == (SharedPlace(instances=(0,), replicas=(0,)),)
    assert joined_places([{"a"}], [{"c"}]) == ()


@pytest.mark.parametrize(
    ("instances", "replicas", "expected"),
    [
        (2, 2, [((0,), (0,)), ((1,), (1,))]),
        (4, 2, [((0, 1), (0,)), ((2, 3), (1,))]),
        (2, 4, [((0,), (0, 1)), ((1,), (2, 3))]),
        (3, 1, [((0, 1, 2), (0,))]),
        (3, 2, [((0, 1), (0,)), ((2,), (1,))]),
    ],
)
def test_on_a_cpu_places_follow_the_order(instances: int, replicas: int, expected: list[object]) -> None:
    assert [(place.instances, place.replicas) for place in places_by_order(instances, replicas)] == expected


@pytest.mark.parametrize("changes", [{"at": 1.1}, {"at": -0.1}, {"share": 0.0}, {"share": 1.0}])
def test_shares_that_make_no_sense_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at must be from 0 to 1 and share between 0 and 1"):
        Lending(**changes)


def test_schedules_that_cannot_lend_say_why() -> None:
    plain = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=2, lending=LENT)
    assert ["set stream to" in reason for reason in unsound(plain)] == [True]
    ahead = replace(plain, stream=Stream.ALWAYS, rounds_ahead=1, max_staleness=1)
    assert ["the next round cannot begin" in reason for reason in unsound(ahead)] == [True]
    assert not list(unsound(replace(plain, stream=Stream.ALWAYS)))
    with pytest.raises(ValueError, match="no scaling strategy 'often'; there are never, fixed, kv-peak"):
        policies_of(replace(plain, stream=Stream.ALWAYS, lending=replace(LENT, strategy="often")))
