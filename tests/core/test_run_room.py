"""When a run is over, what its verdict says, and when it asks to be woken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.outcomes import Part
from tailrace.core.requests import OpenRequest
from tailrace.core.rewards.room import Requested
from tailrace.core.rooms import Rooms
from tailrace.core.run import facts
from tailrace.core.run.room import RequestedStop, Run
from tailrace.core.run.rules import judge, waits, watch
from tailrace.core.schedule import Limits, Schedule
from tailrace.core.training.saves import Saves
from tailrace.policies.strategies import policies_of

I0 = InstanceId(0)
LIMITS = Limits(
    start_s=50.0, progress_s=60.0, reward_s=70.0, prompts_s=80.0, train_s=90.0, weights_s=100.0, checkpoint_s=110.0
)


def rooms_of(**changes: object) -> Rooms:
    """A run in which nothing is awaited: its instance has released its memory."""
    given = {"train_source": "train", "batch_size": 1, "group_size": 1, "max_steps": 3, "limits": LIMITS, **changes}
    schedule = Schedule(**given)
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.fleet.move(rooms.fleet.instances[I0], InstancePhase.STARTING, 0.0)
    rooms.fleet.instances[I0].phase = InstancePhase.RELEASED
    return rooms


def test_a_run_that_waits_for_nothing_ends_with_a_request_to_report_it() -> None:
    rooms = rooms_of()
    assert list(watch(rooms, 0.0)) == []
    assert rooms.run.reason.startswith("internal error: the run waits for nothing")


def test_the_timer_is_set_for_the_first_wait_that_ends() -> None:
    rooms = rooms_of(limits=replace(LIMITS, prompts_s=20.0))
    rooms.collection.requested = OpenRequest(since=4.0, version=Version(0))
    scoring = {ResponseId(GroupId("train", 0, 0), 0): None}
    rooms.rewards.requested[Part.FUNCTION] = Requested(scoring=scoring, heard_at=3.0)
    assert list(watch(rooms, 5.0)) == [do.SetTimer(at=24.0)]
    assert list(watch(rooms, 6.0)) == [], "it is set"
    assert list(watch(rooms, 24.0)) == []
    assert rooms.run.reason == "waited 20 s for prompts of 'train' (limit 20 s)"


def test_the_timer_comes_before_any_wait_that_may_begin_meanwhile_can_end() -> None:
    """A wait that begins right after this event is noticed in time, although nothing sets the timer anew."""
    rooms = rooms_of(limits=replace(LIMITS, weights_s=7.0))
    rooms.collection.requested = OpenRequest(since=0.0, version=Version(0))
    assert list(watch(rooms, 0.0)) == [do.SetTimer(at=7.0)]


def test_a_timer_is_set_again_for_something_that_comes_earlier() -> None:
    rooms = rooms_of()
    rooms.collection.requested = OpenRequest(since=0.0, version=Version(0))
    assert list(watch(rooms, 0.0)) == [do.SetTimer(at=50.0)]
    rooms.fleet.plan_at = 12.0
    assert list(watch(rooms, 1.0)) == [do.SetTimer(at=12.0)]
    rooms.run.timer_at = None
    assert list(watch(rooms, 2.0)) == [do.SetTimer(at=12.0)], "the timer has fired"


def test_an_instance_that_does_not_start_is_killed_and_its_end_is_awaited() -> None:
    rooms = rooms_of()
    rooms.fleet.instances[I0].phase = InstancePhase.STARTING
    reason = "waited 50 s for start of instance 0 (limit 50 s)"
    assert list(watch(rooms, 50.0)) == [do.KillInstance(instance=I0, reason=reason), do.SetTimer(at=100.0)]
    assert not rooms.run.is_over
    assert list(watch(rooms, 100.0)) == []
    assert rooms.run.reason == "waited 50 s for end of instance 0 (limit 50 s)"


def test_a_trainer_that_does_not_start_is_killed_and_the_run_goes_on() -> None:
    rooms = rooms_of()
    rooms.training.is_trainer_asked = True
    reason = "waited 51 s for start of the trainer (limit 50 s)"
    assert list(watch(rooms, 51.0)) == [do.KillTrainer(reason=reason), do.SetTimer(at=101.0)]
    assert not rooms.run.is_over


def test_a_run_that_stops_waits_for_its_trainer_alone_and_a_run_that_is_over_for_nothing() -> None:
    rooms = rooms_of()
    rooms.collection.requested = OpenRequest(since=0.0, version=Version(0))
    rooms.run.stop = RequestedStop(reason="enough", since=2.0)
    [last] = waits(rooms)
    assert (last.what, last.since, last.limit_s) == ("checkpoint of step 0", 2.0, LIMITS.stop_s)
    rooms.run.end()
    assert waits(rooms) == []


def done(version: int, **changes: object) -> Rooms:
    rooms = rooms_of(**changes)
    rooms.training.version = rooms.training.published = rooms.training.trainer = Version(version)
    rooms.training.saves = Saves(version=Version(version))
    return rooms


def test_a_run_is_complete_after_its_last_step_when_that_is_saved() -> None:
    rooms = done(2)
    assert list(judge(rooms)) == []
    assert not rooms.run.is_over
    rooms = done(3)
    rooms.training.save_due = Version(3)
    assert list(judge(rooms)) == []
    rooms.training.save_due = None
    assert list(judge(rooms)) == [do.FinishRun(is_complete=True, reason="3 steps are done")]


def test_a_run_that_stops_is_over_when_its_trainer_is_at_rest() -> None:
    rooms = done(2)
    rooms.run.stop = RequestedStop(reason="enough", since=2.0)
    rooms.training.saves = Saves(version=Version(1))
    assert list(judge(rooms)) == []
    assert not rooms.run.is_over
    rooms.training.saves = Saves(version=Version(2))
    assert list(judge(rooms)) == []
    assert rooms.run.verdict == "enough"


def test_a_verdict_names_the_request_to_stop_first_and_nothing_twice() -> None:
    run = Run()
    assert (run.is_over, run.reason) == (False, "")
    run.stop = RequestedStop(reason="enough", since=0.0)
    run.end("the disk is full")
    assert run.reason == "enough; the disk is full"
    run.end("enough")
    assert run.reason == "enough"
    assert run.is_over


def test_a_report_of_which_several_parts_are_refused_is_counted_once() -> None:
    run = Run()
    run.refuse("one part")
    run.refuse("another part")
    assert (run.num_refused_reports, run.last_refused_report) == (1, "another part")
    run.begin_event()
    run.refuse("the next report")
    assert run.num_refused_reports == 2


def test_a_run_that_stops_has_a_limit_from_the_first_request_on() -> None:
    rooms = rooms_of(limits=replace(LIMITS, stop_s=20.0))
    assert rooms.run.stop_at is None
    for now in (3.0, 9.0):
        facts.stop_requested(rooms, ev.StopRequested(reason="enough", saves=True), now)
    assert rooms.run.stop_at == 23.0


@pytest.mark.parametrize("name", ["timer_at", "verdict", "stop"])
def test_a_resumed_run_forgets_how_the_last_one_ended(name: str) -> None:
    rooms = rooms_of()
    setattr(rooms.run, name, "anything")
    facts.run_resumed(rooms, ev.RunResumed(limits=replace(LIMITS, stop_s=1.0), checkpoint=None), 0.0)
    assert getattr(rooms.run, name) is None
    assert rooms.run.limits.stop_s == 1.0


def test_a_timer_that_fires_too_early_is_set_again() -> None:
    """The clock of the timer and that of the run need not agree."""
    rooms = rooms_of()
    rooms.collection.requested = OpenRequest(since=0.0, version=Version(0))
    assert list(watch(rooms, 0.0)) == [do.SetTimer(at=50.0)]
    facts.timer_fired(rooms, ev.TimerFired(), 49.9)
    assert list(watch(rooms, 49.9)) == [do.SetTimer(at=80.0)]
