"""What an instance is awaited for in each phase, what its loss leaves behind, and when a fleet has failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import I0
from core.test_fleet import GROUP, I1, RESPONSE, SCHEDULE, begun, two_versions
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.fleet import facts
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.policy import Route
from tailrace.core.fleet.room import Fleet
from tailrace.core.fleet.rules import release_memory, start_instances
from tailrace.core.fleet.submitting import give
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.response import Finish, ResponsePhase
from tailrace.core.rooms import Rooms
from tailrace.core.rules import Handler
from tailrace.core.schedule import Leftovers, Limits, Placement

LIMITS = Limits(start_s=1.0, progress_s=2.0, weights_s=3.0, stall_s=None)
PHASE = InstancePhase


def waits(instance: Instance, limits: Limits = LIMITS) -> list[tuple[str, float, float, bool]]:
    fleet = Fleet(instances={instance.id: instance})
    found = fleet.waits(limits, Version(4))
    return [(wait.what, wait.since, wait.limit_s, wait.instance is not None) for wait in found]


@pytest.mark.parametrize(
    ("phase", "what", "limit_s"),
    [
        (PHASE.STARTING, "start of instance 0", 1.0),
        (PHASE.PULLING, "instance 0 to load version 4", 3.0),
        (PHASE.RELEASING, "instance 0 to release its memory", 3.0),
        (PHASE.STOPPING, "retired instance 0 to end", 1.0),
    ],
)
def test_an_instance_that_was_asked_for_something_is_awaited(phase: InstancePhase, what: str, limit_s: float) -> None:
    instance = Instance(id=I0, phase=phase, heard_at=7.0)
    assert waits(instance) == [(what, 7.0, limit_s, True)]
    instance.is_being_killed = True
    assert waits(instance) == [("end of instance 0", 7.0, 1.0, False)], "it is not killed twice"


@pytest.mark.parametrize("phase", [PHASE.ABSENT, PHASE.READY, PHASE.RELEASED])
def test_an_instance_without_work_is_awaited_for_nothing(phase: InstancePhase) -> None:
    assert waits(Instance(id=I0, phase=phase)) == []


def working(**changes: object) -> Instance:
    running = dict.fromkeys(begun(GROUP, version=0, size=3).members)
    return Instance(**{"id": I0, "phase": PHASE.READY, "running": running, "heard_at": 7.0, **changes})


def test_an_instance_with_work_is_awaited_for_its_next_report() -> None:
    assert waits(working()) == [("response train:0:0:0:0 and 2 more on instance 0", 7.0, 2.0, True)]
    aborting = dict.fromkeys([RESPONSE])
    assert waits(working(aborting=aborting))[0][0].startswith("response"), "what it runs comes first"
    assert waits(working(running={}, aborting=aborting)) == [("instance 0 to abort 1 responses", 7.0, 2.0, True)]


def test_an_instance_that_reports_but_does_not_get_on_is_awaited_for_new_tokens() -> None:
    stalling = replace(LIMITS, stall_s=5.0)
    assert waits(working(progressed_at=1.0), stalling) == [
        ("new tokens of train:0:0:0:0 and 2 more on instance 0", 1.0, 5.0, True)
    ]
    assert waits(working(progressed_at=6.0), stalling)[0][0].startswith("response"), "the report is due earlier"


def test_a_sign_of_life_counts_only_while_an_instance_works() -> None:
    instance = working()
    instance.hear(now=9.0, has_progressed=False)
    assert (instance.heard_at, instance.progressed_at) == (9.0, 0.0)
    instance.hear(now=10.0, has_progressed=True)
    assert (instance.heard_at, instance.progressed_at) == (10.0, 10.0)
    instance.is_being_killed = True
    instance.hear(now=11.0, has_progressed=True)
    assert (instance.heard_at, instance.progressed_at) == (10.0, 10.0)
    instance.is_being_killed, instance.phase = False, PHASE.PULLING
    instance.hear(now=11.0, has_progressed=True)
    assert (instance.heard_at, instance.progressed_at) == (10.0, 10.0)


def test_prefill_is_progress_only_if_it_is_more_than_before() -> None:
    instance = working()
    assert [instance.prefill(count) for count in (0, 5, 5, 3, 6)] == [False, True, False, False, True]
    assert instance.num_prefilled == 6


def test_a_move_ends_what_belonged_to_the_phase_before() -> None:
    instance = Instance(id=I0, phase=PHASE.READY, is_draining=True)
    instance.move(PHASE.PULLING, now=3.0)
    assert (instance.is_draining, instance.heard_at, instance.progressed_at) == (False, 3.0, 3.0)
    instance.pulling = Version(2)
    instance.move(PHASE.READY, now=4.0)
    assert instance.pulling is None


def lost_fleet(*counts: int) -> Fleet:
    """A fleet without any instance that runs; each was lost so often."""
    fleet = Fleet()
    for number, count in enumerate(counts):
        instance = Instance(id=I0 if number == 0 else I1, heard_at=float(number))
        instance.losses.count, instance.losses.last = count, f"reason {number}"
        fleet.add(instance)
    return fleet


def test_a_fleet_has_failed_when_each_instance_was_lost_more_often_than_allowed() -> None:
    limits = replace(LIMITS, max_restarts=2)
    assert lost_fleet().failure(limits) is None, "there is none yet"
    assert lost_fleet(3, 2).failure(limits) is None, "the second is started again"
    fleet = lost_fleet(4, 3)
    assert fleet.failure(limits) == (
        "no rollout instance is left: instance 1 was lost 3 times within one step; the last time: reason 1"
    )
    fleet.move(fleet.instances[I0], PHASE.STARTING, 5.0)
    assert fleet.failure(limits) is None, "one is there"


def test_a_loss_resets_an_instance_and_queues_its_responses_with_the_tokens_they_have() -> None:
    rooms = two_versions()
    list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0))
    instance = rooms.fleet.instances[I0]
    instance.aborting, instance.moved_at, instance.is_being_killed = dict.fromkeys([RESPONSE]), 1.0, True
    instance.num_prefilled = instance.num_failed_pulls = 3
    num_absent = rooms.fleet.num_absent
    facts.instance_lost(rooms, ev.InstanceLost(instance=I0, reason="out of memory"), 2.0)
    assert replace(instance, losses=Instance(id=I0).losses) == Instance(id=I0, heard_at=2.0, progressed_at=2.0)
    assert (instance.losses.count, instance.losses.last) == (1, "out of memory")
    response = rooms.responses.response(RESPONSE)
    assert (response.phase, response.instance, response.length) == (ResponsePhase.PENDING, None, 5)
    assert rooms.responses.pending == {GROUP: 1}
    assert rooms.fleet.num_absent == num_absent + 1


def report(rooms: Rooms, length: int, *, version: int = 1, finish: Finish | None = None, now: float = 1.0) -> None:
    """Instance 0 reports that its response has so many tokens."""
    progressed = () if finish is not None else (ev.Progressed(response=RESPONSE, length=length),)
    finished = () if finish is None else (ev.Finished(response=RESPONSE, length=length, finish=finish),)
    event = ev.RolloutReported(instance=I0, version=Version(version), progressed=progressed, finished=finished)
    facts.rollout_reported(rooms, event, now)


def generating() -> Rooms:
    """A response with five tokens of version 1 runs on the instance that holds version 1."""
    rooms = two_versions()
    list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0))
    return rooms


def test_only_new_tokens_are_progress() -> None:
    rooms = generating()
    instance = rooms.fleet.instances[I0]
    report(rooms, 5, now=3.0)
    assert (instance.heard_at, instance.progressed_at) == (3.0, 0.0)
    report(rooms, 6, now=4.0)
    assert (instance.heard_at, instance.progressed_at, instance.num_tokens) == (4.0, 4.0, 6)


@pytest.mark.parametrize(("length", "version"), [(4, 1), (6, 0), (6, 2)], ids=["shorter", "older", "newer than held"])
def test_a_report_that_cannot_be_true_changes_no_response(length: int, version: int) -> None:
    rooms = generating()
    report(rooms, length, version=version)
    assert rooms.responses.response(RESPONSE).length == 5
    assert rooms.run.num_refused == 1


def test_a_response_is_interrupted_only_if_that_was_asked_for() -> None:
    rooms = generating()
    report(rooms, 6, finish=Finish.INTERRUPTED)
    assert rooms.run.last_refusal == f"{RESPONSE} was not asked to stop"
    assert rooms.responses.response(RESPONSE).length == 5
    rooms.fleet.instances[I0].stopping = {RESPONSE: None}
    report(rooms, 6, finish=Finish.INTERRUPTED)
    assert rooms.responses.response(RESPONSE).phase is ResponsePhase.PENDING
    assert rooms.responses.pending == {GROUP: 1}
    assert (rooms.fleet.instances[I0].num_tokens, rooms.fleet.instances[I0].stopping) == (0, {})


def test_a_response_that_ended_needs_a_reward() -> None:
    rooms = generating()
    report(rooms, 6, finish=Finish.LENGTH)
    response = rooms.responses.response(RESPONSE)
    assert (response.phase, response.finish) == (ResponsePhase.GENERATED, Finish.LENGTH)
    assert list(rooms.rewards.generated) == [RESPONSE]
    assert not rooms.responses.pending


def test_responses_are_aborted_by_instance_and_interrupted_where_they_run() -> None:
    rooms = two_versions(replace(SCHEDULE, group_size=3))
    group = begun(GROUP, version=0, size=3)
    rooms.responses.groups[GROUP], rooms.responses.pending[GROUP] = group, 3
    first, second, third = group.members
    list(give(rooms, [Route(GROUP, [first, second, third], [I1, I0, I1])], 0.0))
    assert list(rooms.fleet.interrupt([third, second, ResponseId(GroupId("train", 0, 9), 0)])) == [
        do.Interrupt(instance=I0, responses=(second,)),
        do.Interrupt(instance=I1, responses=(third,)),
    ]
    assert list(rooms.fleet.instances[I1].stopping) == [third]
    aborts = list(rooms.fleet.abort(group.members.values()))
    assert aborts == [
        do.Abort(instance=I0, responses=(second,)),
        do.Abort(instance=I1, responses=(first, third)),
    ]
    assert list(rooms.fleet.instances[I1].aborting) == [first, third]
    assert not rooms.fleet.instances[I1].running
    assert not rooms.fleet.instances[I1].stopping


def test_an_instance_that_was_lost_too_often_is_not_started_before_the_next_step() -> None:
    rooms = Rooms(SCHEDULE, two_versions().policies)
    most = rooms.run.limits.max_restarts
    rooms.fleet.instances[I0].losses.count, rooms.fleet.instances[I1].losses.count = most, most + 1
    assert list(start_instances(rooms, 0.0)) == [do.StartInstance(instance=I0, incarnation=1)]
    assert list(start_instances(rooms, 0.0)) == []
    rooms.fleet.step_trained()
    assert list(start_instances(rooms, 0.0)) == [do.StartInstance(instance=I1, incarnation=2)]


@pytest.mark.parametrize("placement", Placement)
def test_only_idle_colocated_instances_release_their_memory_for_a_step(placement: Placement) -> None:
    schedule = replace(SCHEDULE, leftovers=Leftovers.WAIT, max_staleness=0, placement=placement)
    rooms = two_versions(schedule)
    rooms.training.trainer = rooms.training.version
    list(give(rooms, [Route(GROUP, [RESPONSE], [I0])], 0.0))
    assert list(release_memory(rooms, 0.0)) == [], "no batch waits for a step"
    rooms.training.batches = [(GROUP,)]
    found = list(release_memory(rooms, 0.0))
    assert found == ([do.ReleaseMemory(instance=I1)] if placement is Placement.COLOCATED else [])
    assert not rooms.fleet.is_off_device()


@pytest.mark.parametrize("edition", [1, 2])
@pytest.mark.parametrize("placement", Placement)
def test_an_instance_that_was_lost_starts_beside_no_colocated_step(placement: Placement, edition: int) -> None:
    schedule = replace(SCHEDULE, leftovers=Leftovers.WAIT, max_staleness=0, placement=placement, edition=edition)
    rooms = two_versions(schedule)
    facts.instance_lost(rooms, ev.InstanceLost(instance=I0, reason="killed"), 0.0)
    rooms.training.batches = [(GROUP,)]
    waits = placement is Placement.COLOCATED and edition == 2
    assert [each.instance for each in start_instances(rooms, 1.0)] == ([] if waits else [I0])
    rooms.training.batches = []
    assert waits == bool(list(start_instances(rooms, 2.0)))


def test_answers_to_what_was_not_asked_are_refused() -> None:
    rooms = two_versions()
    before = replace(rooms.fleet.instances[I0])
    for event, handle in (
        (ev.InstanceStopped(instance=I0), facts.instance_stopped),
        (ev.PullFailed(instance=I0, reason="the file is gone"), facts.pull_failed),
        (ev.MemoryReleased(instance=I0, seconds=0.1), facts.memory_released),
        (ev.InstanceStarted(instance=I0, version=Version(0)), facts.instance_started),
    ):
        rooms.run.begin_event()
        handle(rooms, event, 1.0)
        assert rooms.run.is_refused, event
        assert rooms.fleet.instances[I0] == before


def test_an_abort_is_confirmed_once() -> None:
    rooms = generating()
    list(rooms.fleet.abort([rooms.responses.response(RESPONSE)]))
    instance = rooms.fleet.instances[I0]
    for now, num_refused in ((3.0, 0), (4.0, 1)):
        event = ev.ResponsesAborted(instance=I0, aborted=(ev.Aborted(response=RESPONSE, length=6),))
        facts.responses_aborted(rooms, event, now)
        assert not instance.aborting
        assert (rooms.run.num_refused, instance.progressed_at) == (num_refused, 3.0)


@pytest.mark.parametrize(
    ("event", "handle"),
    [
        (ev.InstanceStarted(instance=I0, version=Version(0)), facts.instance_started),
        (ev.InstanceStopped(instance=I0), facts.instance_stopped),
        (ev.InstanceLost(instance=I0, reason="out of memory"), facts.instance_lost),
        (ev.RolloutReported(instance=I0, version=Version(1)), facts.rollout_reported),
        (ev.ResponsesAborted(instance=I0, aborted=()), facts.responses_aborted),
        (ev.WeightsPulled(instance=I0, version=Version(1), seconds=0.1), facts.weights_pulled),
        (ev.PullFailed(instance=I0, reason="the file is gone"), facts.pull_failed),
        (ev.MemoryReleased(instance=I0, seconds=0.1), facts.memory_released),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, ev.Event) else "",
)
def test_what_an_earlier_start_of_an_instance_says_is_refused(event: ev.InstanceEvent, handle: Handler) -> None:
    rooms = generating()
    instance = rooms.fleet.instances[I0]
    instance.incarnation = 3
    before = replace(instance)
    handle(rooms, replace(event, incarnation=2), 5.0)
    assert rooms.run.is_refused
    assert instance == before


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_under_the_first_rules_only_a_confirmed_abort_is_a_sign_of_life(is_confirmed: bool) -> None:
    rooms = generating()
    rooms.schedule = replace(rooms.schedule, edition=1)
    if is_confirmed:
        list(rooms.fleet.abort([rooms.responses.response(RESPONSE)]))
    event = ev.ResponsesAborted(instance=I0, aborted=(ev.Aborted(response=RESPONSE, length=6),))
    facts.responses_aborted(rooms, event, 4.0)
    assert rooms.fleet.instances[I0].heard_at == (4.0 if is_confirmed else 0.0)
