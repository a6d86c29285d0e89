"""Spans and idle seconds by hand, and the promise that they always fill the window."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import EvalSet, Limits, Schedule
from tailrace.observe.time_use.timeline import Lane, Span, Timeline

SCHEDULE = Schedule(train_source="train", batch_size=1, group_size=2, max_steps=1)
ONE = InstanceId(0)
FAST, SLOW = (ResponseId(GroupId("train", 0, 0), member) for member in (0, 1))


def entry(now: float, event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=now, event=event, commands=commands)


def report(now: float, response: ResponseId, *commands: do.Command) -> Entry:
    finished = (ev.Finished(response=response, length=5, finish=Finish.STOP),)
    return entry(now, ev.RolloutReported(instance=ONE, version=Version(0), finished=finished), *commands)


def scored(now: float, response: ResponseId, *commands: do.Command) -> Entry:
    score = ev.Scored(response=response, outcome=Outcome.OK, score=1.0, seconds=0.1)
    return entry(now, ev.ResponsesScored(scores=(score,)), *commands)


def one_step() -> list[Entry]:
    """Start 0-1, generate 1-6, score 3-4 and 6-7, train 7-9, save 9-10, publish 9-12, pull 12-13, end 13."""
    dispatches = tuple(do.Dispatch(response=r, start=0) for r in (FAST, SLOW))
    train = do.Accumulate(version=Version(0), responses=(FAST, SLOW), scores=(1.0, 1.0))
    saved, published = do.SaveCheckpoint(version=Version(1)), do.PublishWeights(version=Version(1))
    return [
        entry(0.0, ev.RunStarted(schedule=SCHEDULE), do.StartInstance(instance=ONE)),
        entry(
            1.0,
            ev.InstanceStarted(instance=ONE, version=Version(0)),
            do.Submit(instance=ONE, dispatches=dispatches),
        ),
        report(3.0, FAST, do.Score(responses=(FAST,))),
        scored(4.0, FAST),
        report(6.0, SLOW, do.Score(responses=(SLOW,))),
        scored(7.0, SLOW, train),
        entry(9.0, ev.StepTrained(version=Version(1), seconds=1.9, metrics=()), published, saved),
        entry(10.0, ev.CheckpointSaved(version=Version(1), seconds=0.9)),
        entry(
            12.0,
            ev.WeightsPublished(version=Version(1), seconds=1.9),
            do.PullWeights(instance=ONE, version=Version(1)),
        ),
        entry(13.0, ev.WeightsPulled(instance=ONE, version=Version(1), seconds=0.9)),
    ]


def lanes(entries: list[Entry]) -> dict[str, Lane]:
    timeline = Timeline()
    for item in entries:
        timeline.feed(item)
    return {lane.name: lane for lane in timeline.lanes()}


def test_a_step_by_hand() -> None:
    found = lanes(one_step())
    assert list(found) == ["instance 0", "rewards", "trainer"]
    assert found["instance 0"].spans == (
        Span(kind="starting", start=0.0, end=1.0),
        Span(kind="generating", start=1.0, end=6.0, version=0),
        Span(kind="loading weights", start=12.0, end=13.0),
    )
    assert found["rewards"].spans == (
        Span(kind="scoring", start=3.0, end=4.0),
        Span(kind="scoring", start=6.0, end=7.0),
    )
    assert found["trainer"].spans == (
        Span(kind="training", start=7.0, end=9.0),
        Span(kind="saving", start=9.0, end=10.0),
        Span(kind="publishing", start=10.0, end=12.0),
    )


def test_each_part_of_the_scores_has_a_lane() -> None:
    parts = (Part.TESTS, Part.JUDGE)
    asked = [do.Score(responses=(FAST,), part=part) for part in parts]
    score = ev.Scored(response=FAST, outcome=Outcome.OK, score=1.0, seconds=0.1)
    first, second, _, *_ = one_step()
    started = entry(0.0, ev.RunStarted(schedule=replace(SCHEDULE, score_parts=parts)), *first.commands)
    found = lanes(
        [
            started,
            second,
            report(3.0, FAST, *asked),
            entry(4.0, ev.ResponsesScored(scores=(score,), part=Part.JUDGE)),
            entry(6.0, ev.ResponsesScored(scores=(score,), part=Part.TESTS)),
        ]
    )
    assert list(found) == ["instance 0", "test cases", "judge", "trainer"]
    assert found["test cases"].spans == (Span(kind="scoring", start=3.0, end=6.0),)
    assert found["judge"].spans == (Span(kind="scoring", start=3.0, end=4.0),)


@pytest.mark.parametrize(("name", "idle_s"), [("instance 0", 6.0), ("rewards", 11.0), ("trainer", 8.0)])
def test_idle_is_what_no_span_covers(name: str, idle_s: float) -> None:
    lane = lanes(one_step())[name]
    assert lane.idle_s == pytest.approx(idle_s)
    assert lane.idle_ratio == pytest.approx(idle_s / 13.0)
    assert sum(span.seconds for span in lane.with_idle() if span.kind == "idle") == pytest.approx(idle_s)


def test_a_push_is_shown_where_no_other_work_hides_it() -> None:
    train, published = do.Accumulate(version=Version(1), responses=(), scores=()), ev.WeightsPublished
    found = lanes(
        [
            *one_step()[:7],  # from 9 on: publishing and saving
            entry(9.5, ev.ResponsesScored(scores=()), train),
            entry(10.0, ev.CheckpointSaved(version=Version(1), seconds=0.9)),
            entry(12.0, published(version=Version(1), seconds=2.9)),
            entry(14.0, ev.StepTrained(version=Version(2), seconds=3.9, metrics=())),
        ]
    )
    assert found["trainer"].spans[1:] == (
        Span(kind="saving", start=9.0, end=10.0),
        Span(kind="training", start=10.0, end=14.0),
    )


def test_an_instance_generates_with_the_version_it_started_with_or_pulled() -> None:
    again = ResponseId(GroupId("train", 0, 1), 0)
    submit = do.Submit(instance=ONE, dispatches=(do.Dispatch(response=again, start=0),))
    found = lanes([*one_step(), entry(14.0, ev.TimerFired(), submit), report(15.0, again)])
    versions = [(span.kind, span.version) for span in found["instance 0"].spans]
    assert versions == [("starting", None), ("generating", 0), ("loading weights", None), ("generating", 1)]


def test_what_is_open_counts_up_to_the_last_entry() -> None:
    lane = lanes(one_step()[:4])["instance 0"]
    assert lane.spans[-1] == Span(kind="generating", start=1.0, end=4.0, version=0)
    assert lane.idle_s == 0.0


def test_time_without_processes_is_down_and_not_idle() -> None:
    resumed = [
        *one_step()[:4],
        entry(9.0, ev.RunResumed(limits=Limits(), checkpoint=None), do.StartInstance(instance=ONE)),
    ]
    found = lanes([*resumed, entry(10.0, ev.InstanceStarted(instance=ONE, version=Version(0)))])
    assert found["instance 0"].seconds() == {"starting": 2.0, "generating": 3.0, "down": 5.0}
    assert found["trainer"].seconds() == {"down": 5.0}
    assert found["trainer"].idle_s == 5.0
    assert found["trainer"].idle_ratio == 1.0


def test_a_trainer_that_takes_lost_steps_again_is_not_idle() -> None:
    found = lanes(
        [
            *one_step(),
            entry(20.0, ev.RunResumed(limits=Limits(), checkpoint=None), do.StartTrainer()),
            entry(22.0, ev.TrainerReached(version=Version(0))),
            entry(25.0, ev.TrainerReached(version=Version(1))),
            entry(26.0, ev.InstanceStarted(instance=ONE, version=Version(0))),
        ]
    )
    assert found["trainer"].spans[-3:] == (
        Span(kind="down", start=13.0, end=20.0),
        Span(kind="starting", start=20.0, end=22.0),
        Span(kind="catching up", start=22.0, end=25.0),
    )
    assert found["trainer"].idle_s == 9.0


def test_a_lost_instance_generates_nothing_any_more() -> None:
    lost = entry(5.0, ev.InstanceLost(instance=ONE, reason="killed"), do.StartInstance(instance=ONE))
    found = lanes([*one_step()[:4], lost, entry(8.0, ev.InstanceStarted(instance=ONE, version=Version(0)))])
    assert found["instance 0"].seconds() == {"starting": 4.0, "generating": 4.0}


@pytest.mark.parametrize("seed", range(6))
def test_spans_never_overlap_and_with_idle_time_they_fill_the_window(seed: int) -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=3,
        max_steps=4,
        num_instances=2,
        eval_sets=(EvalSet(name="heldout", num_prompts=2, group_size=1),),
        eval_interval=2,
        save_interval=2,
    )
    world = World(schedule, random.Random(seed), trouble=0.04)
    world.run()
    for lane in lanes(world.entries).values():
        filled = lane.with_idle()
        assert all(span.seconds > 0 for span in filled)
        assert (filled[0].start, filled[-1].end) == (lane.start, lane.end)
        assert all(first.end == second.start for first, second in pairwise(filled))
        busy = sum(lane.seconds().values())
        assert busy + lane.idle_s == pytest.approx(lane.end - lane.start)
