"""What a row says about the round of its batch: numbers by hand, and that nothing of another round is among them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import EvalSet, Leftovers, Schedule
from tailrace.observe.metrics.rows import Metrics, Row

SCHEDULE = Schedule(
    train_source="train", batch_size=1, group_size=2, max_steps=2, num_instances=2, leftovers=Leftovers.DEFER,
    launch_prompts=2, eval_sets=(EvalSet(name="heldout", num_prompts=1, group_size=1),),
)  # fmt: skip
FIRST, SECOND = InstanceId(0), InstanceId(1)
A, B = (ResponseId(GroupId("train", 0, 0), member) for member in (0, 1))
SURPLUS = ResponseId(GroupId("train", 0, 1), 0)
HELDOUT = ResponseId(GroupId("heldout", 0, 0), 0)
Lengths = dict[ResponseId, int]


def entry(now: float, event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=now, event=event, commands=commands)


def submit(instance: InstanceId, *responses: ResponseId, start: int = 0) -> do.Submit:
    return do.Submit(instance=instance, dispatches=tuple(do.Dispatch(response=r, start=start) for r in responses))


def report(
    instance: InstanceId, progressed: Lengths, finished: Lengths | None = None, preemptions: int = 0, start: int = 1
) -> ev.RolloutReported:
    return ev.RolloutReported(
        instance=instance,
        incarnation=start,
        version=Version(0),
        progressed=tuple(ev.Progressed(response=r, length=length) for r, length in progressed.items()),
        finished=tuple(ev.Finished(response=r, length=n, finish=Finish.STOP) for r, n in (finished or {}).items()),
        num_preemptions=preemptions,
    )


def open_round(number: int, *, is_long: bool = False, size: int = 0) -> do.OpenRound:
    return do.OpenRound(round=number, is_long=is_long, version=Version(number), parallel_size=size)


def start(instance: InstanceId, incarnation: int = 1) -> do.StartInstance:
    return do.StartInstance(instance=instance, incarnation=incarnation)


def accumulate(*responses: ResponseId, version: int = 0) -> do.Accumulate:
    return do.Accumulate(version=Version(version), responses=responses, scores=(0.0,) * len(responses))


BEGUN = [
    entry(0.0, ev.RunStarted(schedule=SCHEDULE), start(FIRST), start(SECOND), open_round(0, size=2)),
    entry(1.0, ev.TimerFired(), submit(FIRST, A, B), submit(SECOND, SURPLUS)),
]
ROUND = [
    *BEGUN,
    entry(1.5, report(FIRST, {A: 4, B: 0}, preemptions=1)),
    entry(2.0, report(SECOND, {SURPLUS: 10})),
    entry(3.0, report(FIRST, {A: 7, B: 2}, preemptions=3)),
    entry(4.0, report(SECOND, {SURPLUS: 30}, preemptions=2), do.Abort(instance=SECOND, responses=(SURPLUS,))),
    entry(5.0, report(FIRST, {}, {A: 9, B: 6}, preemptions=3), accumulate(A, B)),
    entry(6.0, ev.StepTrained(version=Version(1), seconds=1.0, metrics=())),
]


def rows_of(entries: Iterable[Entry]) -> list[Row]:
    metrics = Metrics()
    return [row for each in entries for row in metrics.feed(each)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round/num_responses", 3),
        ("round/longest_response", 30),
        ("round/time_to_first_token_s/mean", (0.5 + 2.0 + 1.0) / 3),
        ("round/time_to_first_token_s/max", 2.0),
        # A: 3 tokens in 1.5 s and 2 in 2 s; B: 4 in 2 s; the surplus: 20 in 2 s.
        ("round/time_per_token_ms/mean", 1000 * 7.5 / 29),
        # From 1 s on, each second: 0 and 4, 14, 19, 39, and 30 of the surplus until the step is trained.
        ("round/kv_tokens/mean", (0.5 * 0 + 0.5 * 4 + 14 + 19 + 39 + 30) / 5),
        ("round/kv_tokens/max", 39),
        ("round/num_preemptions", 5),
        ("round/preemptions_per_response", 5 / 3),
        ("round/parallel_size", 2),
    ],
)
def test_a_round_by_hand(name: str, value: float) -> None:
    (row,) = rows_of(ROUND)
    assert row[name] == pytest.approx(value)


@pytest.mark.parametrize("place", range(1, len(ROUND)))
def test_metrics_that_are_restored_count_the_round_as_before(place: int) -> None:
    metrics = Metrics()
    for each in ROUND[:place]:
        metrics.feed(each)
    metrics = Metrics.restore(json.loads(json.dumps(metrics.snapshot())))
    assert [row for each in ROUND[place:] for row in metrics.feed(each)] == rows_of(ROUND)


def test_a_round_that_opens_before_the_step_is_trained_is_counted_apart() -> None:
    others = [ResponseId(GroupId("train", 0, 2), member) for member in (0, 1)]
    *before, trained = ROUND
    ahead = entry(5.5, ev.TimerFired(), open_round(1, is_long=True), submit(FIRST, *others))
    ended = entry(8.0, report(FIRST, {}, dict.fromkeys(others, 50), preemptions=4), accumulate(*others, version=1))
    last = entry(9.0, ev.StepTrained(version=Version(2), seconds=1.0, metrics=()))
    first, second = rows_of([*before, ahead, trained, ended, last])
    counted = ("round/num_responses", "round/num_preemptions", "round/longest_response")
    assert [[row[name] for name in counted] for row in (first, second)] == [[3, 5, 30], [2, 1, 50]]
    assert second["round/time_to_first_token_s/mean"] == 2.5
    assert [row["groups/is_long_round"] for row in (first, second)] == [0, 1]
    assert "round/parallel_size" not in second, "the settings say it, and the journal does not"


def test_preemptions_of_an_instance_that_was_restarted_are_counted_from_zero() -> None:
    """Also where the new process has already counted as many as the old one, or a word of the old one comes late."""
    restarted = [
        *BEGUN,
        entry(2.0, report(FIRST, {A: 1}, preemptions=3)),
        entry(3.0, ev.InstanceLost(instance=FIRST, incarnation=1, reason="killed"), start(FIRST, incarnation=2)),
        entry(4.0, report(FIRST, {A: 2}, preemptions=9)),
        entry(5.0, ev.InstanceStarted(instance=FIRST, incarnation=2, version=Version(0)), submit(FIRST, B),
              submit(FIRST, A, start=1)),
        entry(6.0, report(FIRST, {A: 4}, {B: 4}, preemptions=5, start=2)),
        entry(7.0, report(FIRST, {}, {A: 5}, preemptions=5, start=2), accumulate(A, B)),
        entry(8.0, ev.StepTrained(version=Version(1), seconds=1.0, metrics=())),
    ]  # fmt: skip
    (row,) = rows_of(restarted)
    assert row["round/num_preemptions"] == 8
    assert row["round/num_responses"] == 3, "a response that is sent again is the same response"


def test_the_time_in_which_a_response_was_not_on_an_instance_is_no_time_per_token() -> None:
    moved = [
        *BEGUN,
        entry(2.0, report(FIRST, {A: 1, B: 1}), do.Interrupt(instance=FIRST, responses=(A,))),
        entry(3.0, ev.RolloutReported(
            instance=FIRST, version=Version(0),
            finished=(ev.Finished(response=A, length=2, finish=Finish.INTERRUPTED),),
        )),
        entry(50.0, ev.TimerFired(), submit(SECOND, A, start=2)),
        entry(60.0, report(SECOND, {A: 12})),
        entry(62.0, report(SECOND, {}, {A: 14})),
        entry(63.0, report(FIRST, {}, {B: 1}), accumulate(A, B)),
        entry(64.0, ev.StepTrained(version=Version(1), seconds=1.0, metrics=())),
    ]  # fmt: skip
    (row,) = rows_of(moved)
    assert row["round/time_per_token_ms/mean"] == pytest.approx(1000 * (1 + 2) / (1 + 2))
    assert row["round/time_to_first_token_s/max"] == 1.0


def test_a_first_token_that_comes_after_an_outage_has_no_time() -> None:
    resumed = [
        *BEGUN,
        entry(90.0, ev.RunResumed(limits=SCHEDULE.limits, checkpoint=None), start(FIRST, incarnation=2)),
        entry(95.0, ev.InstanceStarted(instance=FIRST, incarnation=2, version=Version(0)), submit(FIRST, A, B)),
        entry(96.0, report(FIRST, {A: 1, B: 1}, start=2)),
        entry(98.0, report(FIRST, {}, {A: 3, B: 2}, start=2), accumulate(A, B)),
        entry(99.0, ev.StepTrained(version=Version(1), seconds=1.0, metrics=())),
    ]
    (row,) = rows_of(resumed)
    assert "round/time_to_first_token_s/mean" not in row
    assert row["round/time_per_token_ms/mean"] == pytest.approx(1000 * 4 / 3)


def test_evaluations_are_no_part_of_a_round() -> None:
    (plain,) = rows_of(ROUND)
    evaluated = [
        *BEGUN[:1],
        entry(0.1, ev.TimerFired(), submit(SECOND, HELDOUT)),
        entry(0.8, report(SECOND, {}, {HELDOUT: 900}, preemptions=7)),
        *(entry(each.now, _with_more(each.event, 7), *each.commands) for each in ROUND[1:]),
    ]
    (row,) = rows_of(evaluated)
    mine = {name: value for name, value in row.items() if name.startswith("round/")}
    assert mine == {name: plain[name] for name in mine}


def _with_more(event: ev.Event, preemptions: int) -> ev.Event:
    """The report of the instance that had these preemptions before."""
    if isinstance(event, ev.RolloutReported) and event.instance == SECOND:
        counted = event.num_preemptions + preemptions
        lengths = {part.response: part.length for part in event.progressed}
        return report(SECOND, lengths, preemptions=counted)
    return event


def test_a_schedule_without_rounds_has_no_metrics_of_rounds() -> None:
    schedule = Schedule(
        train_source="train", batch_size=2, group_size=2, max_steps=3, leftovers=Leftovers.KEEP, max_staleness=1
    )
    world = World(schedule, random.Random(1))
    assert world.run().is_complete
    rows = rows_of(world.entries)
    assert len(rows) == 3
    assert not [name for row in rows for name in row if name.startswith("round/")]


def test_a_round_is_forgotten_when_its_batch_is_trained() -> None:
    schedule = Schedule(
        train_source="train", batch_size=2, group_size=2, max_steps=12, launch_prompts=4, launch_responses=3,
        leftovers=Leftovers.DEFER, rounds_ahead=1, max_staleness=1,
    )  # fmt: skip
    world = World(schedule, random.Random(3), num_prompts=29, trouble=0.02)
    metrics = Metrics()
    world.run()
    for each in world.entries:
        metrics.feed(each)
        assert len(metrics._memory.rounds) <= 2
        assert all(len(counts.since) <= 12 + 12 for counts in metrics._memory.rounds.values())
    assert metrics._memory.rounds == {}
