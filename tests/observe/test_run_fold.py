"""The shared fold: what runs where, also when reports are repeated or come from the wrong instance."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

import pytest

from core import histories
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, Schedule
from tailrace.observe.account import Account
from tailrace.observe.schedules.schedule_account import ScheduleAccount
from tailrace.observe.shared_fold.records import ResponseRecord, Task, Work
from tailrace.observe.shared_fold.run_fold import RunFold

A, B = (ResponseId(GroupId("train", 0, prompt), 0) for prompt in (0, 1))
I0, I1 = InstanceId(0), InstanceId(1)
FIRED = ev.TimerFired()
REPEATED = (
    ev.RolloutReported,
    ev.ResponsesScored,
    ev.ResponsesAborted,
    ev.StepTrained,
    ev.CheckpointSaved,
    ev.WeightsPublished,
    ev.WeightsPulled,
)


def fed(*messages: tuple[ev.Event, tuple[do.Command, ...]]) -> RunFold:
    run = RunFold()
    schedule = Schedule(train_source="train", batch_size=2, group_size=1, max_steps=2, num_instances=2)
    for event, commands in ((ev.RunStarted(schedule=schedule), ()), *messages):
        run.follow(Entry(now=1.0, event=event, commands=commands))
    return run


def submit(*responses: ResponseId, instance: InstanceId = I0) -> do.Submit:
    dispatches = tuple(do.Dispatch(response=response, start=0) for response in responses)
    return do.Submit(instance=instance, dispatches=dispatches)


def ended(
    response: ResponseId, length: int, *, version: int = 0, instance: InstanceId = I0, finish: Finish = Finish.STOP
) -> ev.RolloutReported:
    part = ev.Finished(response=response, length=length, finish=finish)
    return ev.RolloutReported(instance=instance, version=Version(version), finished=(part,))


def grown(response: ResponseId, length: int, *, instance: InstanceId = I0) -> ev.RolloutReported:
    part = ev.Progressed(response=response, length=length)
    return ev.RolloutReported(instance=instance, version=Version(0), progressed=(part,))


def test_a_response_has_its_tokens_by_version_and_the_instance_that_runs_it() -> None:
    run = fed(
        (FIRED, (submit(A, B),)),
        (ended(A, 4, finish=Finish.INTERRUPTED), (submit(A, instance=I1),)),
        (ended(A, 9, version=1, instance=I1), ()),
    )
    response = run.state.responses[A]
    assert (response.segments, response.length, response.instance) == ([(0, 4), (1, 5)], 9, None)
    assert {number: [*instance.running] for number, instance in run.state.instances.items()} == {I0: [B], I1: []}
    assert [*run.generating] == [I0]


def test_an_instance_has_its_version_and_what_it_was_asked_to_do() -> None:
    run = fed(
        (FIRED, (do.StartInstance(instance=I0), do.StartInstance(instance=I1))),
        (ev.InstanceStarted(instance=I0, version=Version(3)), (do.PullWeights(instance=I0, version=Version(4)),)),
    )
    first, second = run.instance(I0), run.instance(I1)
    assert (first.is_up, first.version, first.task) == (True, 3, Task.PULL)
    assert (second.is_up, second.version, second.task) == (False, None, Task.START)
    assert {*run.occupied} == {I0, I1}


def test_the_trainer_has_its_orders_and_forgets_them_when_the_run_is_resumed() -> None:
    train = do.Accumulate(version=Version(0), responses=(A,), scores=(1.0,))
    asked = (submit(A), train, do.SaveCheckpoint(version=Version(0)), do.PublishWeights(version=Version(0)))
    run = fed((FIRED, asked))
    assert [order.work for order in run.state.orders] == [Work.TRAIN, Work.SAVE]
    assert run.state.publishing == 0
    limits = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1).limits
    run.follow(Entry(now=2.0, event=ev.RunResumed(limits=limits, checkpoint=None), commands=()))
    assert (run.state.orders, run.state.publishing, run.generating) == ([], None, {})


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(grown(A, 2), id="older than the last one"),
        pytest.param(ended(A, 7, instance=I1), id="from an instance that does not run it"),
        pytest.param(grown(B, 5), id="about a response that ended"),
        pytest.param(ended(B, 6), id="an end that was reported before"),
        pytest.param(grown(ResponseId(GroupId("train", 0, 9), 0), 5), id="about an unknown response"),
    ],
)
def test_a_report_that_cannot_be_right_changes_nothing(report: ev.RolloutReported) -> None:
    run = fed((FIRED, (submit(A, B),)), (grown(A, 3), ()), (ended(B, 6), ()))
    before = run.snapshot()
    news = [*run.feed(Entry(now=1.0, event=report, commands=()))]
    assert all(not (each.ended or each.wasted or any(new for _, new in each.heard)) for each in news)
    after = run.snapshot()
    for snapshot in (before, after):
        snapshot["instances"] = {number: item for number, item in snapshot["instances"].items() if number == "0"}
    assert after == before


def test_a_repeated_reward_counts_once() -> None:
    scored = ev.Scored(response=A, outcome=Outcome.OK, score=1.0, seconds=0.1)
    event = ev.ResponsesScored(scores=(scored,))
    run = fed((FIRED, (submit(A),)), (ended(A, 3), (do.Score(responses=(A,)),)))
    counts = [sum(len(news.scored) for news in run.feed(Entry(now=1.0, event=event, commands=()))) for _ in range(2)]
    assert counts == [1, 0]


def with_repeats(entries: Sequence[Entry], rng: random.Random) -> Iterator[Entry]:
    """Every report may come again at once, or some entries later."""
    late: list[ev.Event] = []
    for entry in entries:
        if isinstance(entry.event, ev.RunResumed):
            late.clear()  # the processes that could repeat something are gone
        yield entry
        if isinstance(entry.event, REPEATED) and rng.random() < 0.3:
            late.append(entry.event)
        if late and rng.random() < 0.5:
            yield Entry(now=entry.now, event=late.pop(0), commands=())


@pytest.mark.parametrize("seed", range(8))
def test_repeated_reports_change_no_account_of_any_run(seed: int) -> None:
    rng = random.Random(seed)
    world = World(histories.any_schedule(rng), rng, num_prompts=histories.NUM_PROMPTS, trouble=0.03)
    world.run()
    plain, repeated = Account(), Account()
    costs, costs_repeated = ScheduleAccount(), ScheduleAccount()
    for entry in world.entries:
        plain.feed(entry)
        costs.feed(entry)
    for entry in with_repeats(world.entries, rng):
        repeated.feed(entry)
        costs_repeated.feed(entry)
    assert repeated.num_entries > plain.num_entries
    assert repeated.steps == plain.steps
    assert [*repeated.fates.groups.values()] == [*plain.fates.groups.values()]
    assert costs_repeated.figures().to_dict() == pytest.approx(costs.figures().to_dict())
    assert repeated.timeline.lanes() == plain.timeline.lanes()


def by_id(responses: list[ResponseRecord]) -> dict[ResponseId, ResponseRecord]:
    return {response.id: response for response in responses}


def test_a_fold_restored_from_a_snapshot_goes_on_as_if_nothing_had_happened() -> None:
    rng = random.Random(3)
    world = World(histories.any_schedule(rng), rng, num_prompts=histories.NUM_PROMPTS, trouble=0.05)
    world.run()
    whole, copied = RunFold(), RunFold()
    for entry in world.entries:
        copied = RunFold.restore(json.loads(json.dumps(copied.snapshot())))
        news = zip(whole.feed(entry), copied.feed(entry), strict=True)
        for one, other in news:
            assert (one.heard, one.ended, one.trained) == (other.heard, other.ended, other.trained)
            assert by_id(one.gone) == by_id(other.gone)
        assert copied.state == whole.state
        assert (copied.generating, copied.occupied) == (whole.generating, whole.occupied)


def test_a_reward_that_comes_while_the_run_stops_does_not_count() -> None:
    """The run does not take it either: it asks for it again when it goes on."""
    stop = ev.StopRequested(reason="it was asked to stop", saves=True)
    wrong, right = (ev.Scored(response=A, outcome=Outcome.OK, score=score, seconds=0.1) for score in (0.25, 0.75))
    before = ((FIRED, (submit(A),)), (ended(A, 3), (do.Score(responses=(A,)),)), (stop, ()))
    run = fed(*before, (ev.ResponsesScored(scores=(wrong,)), ()))
    assert run.state.responses[A].outcome is None
    again = (ev.RunResumed(limits=Limits(), checkpoint=None), (do.Score(responses=(A,)),))
    run = fed(*before, (ev.ResponsesScored(scores=(wrong,)), ()), again, (ev.ResponsesScored(scores=(right,)), ()))
    assert run.state.responses[A].score == 0.75


def test_totals_of_a_source_are_added_up_over_the_parts_of_a_score_and_other_extras_are_not() -> None:
    schedule = Schedule(
        train_source="train", batch_size=1, group_size=1, max_steps=1, score_parts=(Part.FUNCTION, Part.TESTS)
    )
    run = RunFold()

    def scored(part: Part, **extras: float) -> ev.ResponsesScored:
        told = tuple((name.replace("_", "/"), value) for name, value in extras.items())
        score = ev.Scored(response=A, outcome=Outcome.OK, score=1.0, seconds=0.1, extras=told)
        return ev.ResponsesScored(scores=(score,), part=part)

    asked = tuple(do.Score(responses=(A,), part=part) for part in schedule.score_parts)
    for event, commands in (
        (ev.RunStarted(schedule=schedule), (submit(A),)),
        (ended(A, 3), asked),
        (scored(Part.FUNCTION, source_math=0.5, length=3.0), ()),
        (scored(Part.TESTS, source_math=0.25, length=4.0), ()),
    ):
        run.follow(Entry(now=1.0, event=event, commands=commands))
    assert run.state.responses[A].extras == (("source/math", 0.75), ("length", 4.0))
