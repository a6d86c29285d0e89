"""An instance that has left the fleet is not idle: it is not there."""

from __future__ import annotations

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, Schedule
from tailrace.observe.metrics.rows import Metrics
from tailrace.observe.schedules.schedule_account import ScheduleAccount
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.observe.time_use.timeline import Timeline

ONE, TWO = InstanceId(0), InstanceId(1)
SCHEDULE = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=3, num_instances=2)
STARTED = (
    Entry(
        now=0.0,
        event=ev.RunStarted(schedule=SCHEDULE),
        commands=(do.StartInstance(instance=ONE, incarnation=1), do.StartInstance(instance=TWO, incarnation=2)),
    ),
    Entry(now=0.0, event=ev.InstanceStarted(instance=ONE, version=Version(0)), commands=()),
    Entry(now=0.0, event=ev.InstanceStarted(instance=TWO, version=Version(0)), commands=()),
)
RESUMED = ev.RunResumed(limits=Limits(), checkpoint=None)
ENDS: dict[str, tuple[ev.Event, ...]] = {
    "stopped": (ev.InstanceRetired(instance=TWO), ev.InstanceStopped(instance=TWO)),
    "lost while it was to leave": (ev.InstanceRetired(instance=TWO), ev.InstanceLost(instance=TWO, reason="killed")),
    "lost before": (ev.InstanceLost(instance=TWO, reason="killed"), ev.InstanceRetired(instance=TWO)),
    "gone with the run": (ev.InstanceRetired(instance=TWO), RESUMED),
}


def at(now: float, event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=now, event=event, commands=commands)


def response(step: int) -> ResponseId:
    return ResponseId(GroupId("train", 0, step), 0)


def step(begin: float, end: float, number: int, instance: InstanceId = ONE) -> list[Entry]:
    """A step whose only response an instance generates all the time."""
    response_id = response(number)
    finished = ev.Finished(response=response_id, length=4, finish=Finish.STOP)
    asked = do.Submit(instance=instance, dispatches=(do.Dispatch(response_id, 0),))
    train = do.Accumulate(version=Version(number), responses=(response_id,), scores=(1.0,), oldest=(Version(0),))
    return [
        at(begin, ev.TimerFired(), asked),
        at(end, ev.RolloutReported(instance=instance, version=Version(0), finished=(finished,)), train),
        at(end, ev.StepTrained(version=Version(number + 1), seconds=0.0, metrics=())),
    ]


def retired(end: str, *, after: int = 1) -> list[Entry]:
    """Both instances work for a step, then one leaves and the other works for another."""
    first, last = step(0.0, 10.0, 0, TWO), step(10.0, 20.0, 1)
    return [*STARTED, *first, *(at(10.0, event) for event in ENDS[end]), *last]


@pytest.mark.parametrize("end", ENDS)
def test_the_idle_share_of_a_step_counts_only_instances_that_are_there(end: str) -> None:
    metrics = Metrics()
    rows = [row for entry in retired(end) for row in metrics.feed(entry)]
    found = [row["idle/rollout_ratio"] for row in rows if "idle/rollout_ratio" in row]
    assert found[-1] == pytest.approx(0.0), "the instance that is left generated all the time"


@pytest.mark.parametrize("end", ENDS)
def test_the_lane_of_an_instance_ends_when_it_leaves(end: str) -> None:
    timeline = Timeline()
    for entry in retired(end):
        timeline.feed(entry)
    lanes = {lane.name: lane for lane in timeline.lanes()}
    assert lanes["instance 1"].end == 10.0
    assert lanes["instance 1"].idle_s == pytest.approx(0.0)
    assert lanes["instance 0"].end == 20.0
    assert lanes["instance 0"].idle_s == pytest.approx(10.0)


def test_an_instance_that_comes_back_was_not_idle_meanwhile() -> None:
    timeline = Timeline()
    back = at(15.0, ev.InstanceAdded(instance=TWO), do.StartInstance(instance=TWO, incarnation=3))
    up = at(16.0, ev.InstanceStarted(instance=TWO, incarnation=3, version=Version(0)))
    for entry in [*retired("stopped")[:-3], back, up, at(20.0, ev.TimerFired())]:
        timeline.feed(entry)
    (lane,) = [lane for lane in timeline.lanes() if lane.name == "instance 1"]
    assert lane.end == 20.0
    assert lane.seconds() == {"generating": 10.0, "down": 5.0, "starting": 1.0}
    assert lane.idle_s == pytest.approx(4.0)


def test_an_instance_that_shall_stay_after_all_is_counted() -> None:
    fold = RunFold()
    for entry in [*STARTED, at(1.0, ev.InstanceRetired(instance=TWO)), at(2.0, ev.InstanceAdded(instance=TWO))]:
        fold.follow(entry)
    fold.follow(at(3.0, ev.InstanceLost(instance=TWO, reason="killed")))
    assert not fold.instance(TWO).is_gone


@pytest.mark.parametrize("end", ENDS)
def test_shares_of_a_run_count_the_seconds_in_which_instances_were_there(end: str) -> None:
    account = ScheduleAccount()
    for entry in retired(end):
        account.feed(entry)
    figures = account.figures()
    # 10 s of two instances and 10 s of one; one of them generated in each.
    assert figures.rollout_idle_share == pytest.approx(1 / 3)


def test_an_instance_that_was_added_counts_from_then_on() -> None:
    account, three = ScheduleAccount(), InstanceId(2)
    added = at(10.0, ev.InstanceAdded(instance=three), do.StartInstance(instance=three, incarnation=3))
    for entry in [*STARTED, *step(0.0, 10.0, 0), added, *step(10.0, 20.0, 1)]:
        account.feed(entry)
    assert account.figures().rollout_idle_share == pytest.approx(1 - 20 / 50)
