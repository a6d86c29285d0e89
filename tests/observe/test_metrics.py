"""Metrics are a fold over the journal: numbers by hand for a small run, and snapshots that change nothing."""

from __future__ import annotations

import json
import random

import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import EvalSet, Leftovers, Schedule
from tailrace.observe.metrics.response_metrics import percentile
from tailrace.observe.metrics.rows import Metrics, Row

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=1)
INSTANCE = InstanceId(0)
UNFINISHED, ENDED = (ResponseId(GroupId("train", 0, 9), member) for member in (0, 1))


def entry(now: float, event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=now, event=event, commands=commands)


def submit(*responses: ResponseId) -> do.Submit:
    return do.Submit(instance=INSTANCE, dispatches=tuple(do.Dispatch(response=r, start=0) for r in responses))


def score(*responses: ResponseId) -> do.Score:
    return do.Score(responses=responses)


def one_step() -> tuple[Metrics, Row]:
    """Two groups of two: scores 1, 0 and 1, (timeout); lengths 10, 20, 30, 40, the last one clipped."""
    ids = [ResponseId(GroupId("train", 0, prompt), member) for prompt in (0, 1) for member in (0, 1)]
    lengths = dict(zip(ids, (10, 20, 30, 40), strict=True))
    outcomes = [Outcome.OK, Outcome.OK, Outcome.OK, Outcome.TIMEOUT]
    scores = [1.0, 0.0, 1.0, 0.0]
    metrics = Metrics()
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE)))
    metrics.feed(entry(1.0, ev.InstanceStarted(instance=INSTANCE, version=Version(0)), submit(*ids)))
    finished = tuple(
        ev.Finished(response=i, length=lengths[i], finish=Finish.LENGTH if lengths[i] == 40 else Finish.STOP)
        for i in ids
    )
    report = ev.RolloutReported(instance=INSTANCE, version=Version(0), finished=finished)
    metrics.feed(entry(3.0, report, score(*ids)))
    scored = tuple(
        ev.Scored(response=i, outcome=o, score=s, seconds=0.25, extras=(("style", s),))
        for i, o, s in zip(ids, outcomes, scores, strict=True)
    )
    train = do.Accumulate(version=Version(0), responses=tuple(ids), scores=tuple(scores))
    metrics.feed(entry(3.5, ev.ResponsesScored(scores=scored), train))
    (row,) = metrics.feed(entry(5.0, ev.StepTrained(version=Version(1), seconds=1.5, metrics=(("actor/lr", 0.1),))))
    return metrics, row


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", 1),
        ("reward/mean", 0.5),
        ("reward/std", 0.5),
        ("reward/num_timeout", 1),
        ("reward/num_error", 0),
        ("reward/style/mean", 0.5),
        ("response_length/mean", 25.0),
        ("response_length/p50", 30),
        ("response_length/max", 40),
        ("response_length/clip_ratio", 0.25),
        ("groups/frac_zero_std", 0.0),
        ("staleness/max", 0),
        ("staleness/violations", 0),
        ("actor/lr", 0.1),
        ("timing_s/step", 4.0),
        ("timing_s/gen", 2.0),
        ("timing_s/reward_exposed", 0.5),
        ("timing_s/update_actor", 1.5),
        ("perf/tokens_per_s", 25.0),
        ("idle/rollout_ratio", 0.5),
        ("idle/trainer_ratio", 0.625),
    ],
)
def test_a_step_by_hand(name: str, value: float) -> None:
    _, row = one_step()
    assert row[name] == pytest.approx(value)


def test_a_response_is_as_stale_as_its_oldest_token() -> None:
    metrics = Metrics()
    old, new = (ResponseId(GroupId("train", 0, 0), member) for member in (0, 1))
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE), submit(old, new)))
    begun = (ev.Progressed(response=old, length=1),)
    metrics.feed(entry(1.0, ev.RolloutReported(instance=INSTANCE, version=Version(3), progressed=begun)))
    done = tuple(ev.Finished(response=r, length=2, finish=Finish.STOP) for r in (old, new))
    metrics.feed(entry(2.0, ev.RolloutReported(instance=INSTANCE, version=Version(5), finished=done)))
    train = do.Accumulate(version=Version(5), responses=(old, new), scores=(0.0, 0.0))
    metrics.feed(entry(3.0, ev.TimerFired(), train))
    (row,) = metrics.feed(entry(4.0, ev.StepTrained(version=Version(6), seconds=1.0, metrics=())))
    assert (row["staleness/mean"], row["staleness/max"], row["staleness/violations"]) == (1.0, 2, 1)


def test_a_step_waits_for_rewards_only_while_they_are_missing() -> None:
    """Not while the trainer starts, nor if all that it trains was scored before the last step."""
    metrics = Metrics()
    first, second = (ResponseId(GroupId("train", 0, prompt), 0) for prompt in (0, 1))
    finished = tuple(ev.Finished(response=r, length=2, finish=Finish.STOP) for r in (first, second))
    scores = tuple(ev.Scored(response=r, outcome=Outcome.OK, score=1.0, seconds=0.1) for r in (first, second))
    steps = [do.Accumulate(version=Version(n), responses=(r,), scores=(1.0,)) for n, r in enumerate((first, second))]
    trained = [ev.StepTrained(version=Version(n), seconds=1.0, metrics=()) for n in (1, 2)]
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE), submit(first, second)))
    report = ev.RolloutReported(instance=INSTANCE, version=Version(0), finished=finished)
    metrics.feed(entry(3.0, report, score(first, second)))
    metrics.feed(entry(3.5, ev.ResponsesScored(scores=scores)))
    metrics.feed(entry(9.0, ev.TrainerReached(version=Version(0)), steps[0]))
    rows = metrics.feed(entry(10.0, trained[0], steps[1])) + metrics.feed(entry(11.0, trained[1]))
    assert [row["timing_s/reward_exposed"] for row in rows] == [0.5, 0.0]


def test_only_tokens_make_a_response_stale() -> None:
    metrics = Metrics()
    late, empty = (ResponseId(GroupId("train", 0, 0), member) for member in (0, 1))
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE), submit(late, empty)))
    begun = tuple(ev.Progressed(response=r, length=0) for r in (late, empty))
    metrics.feed(entry(1.0, ev.RolloutReported(instance=INSTANCE, version=Version(3), progressed=begun)))
    done = tuple(ev.Finished(response=r, length=n, finish=Finish.STOP) for r, n in ((late, 2), (empty, 0)))
    metrics.feed(entry(2.0, ev.RolloutReported(instance=INSTANCE, version=Version(4), finished=done)))
    train = do.Accumulate(version=Version(5), responses=(late, empty), scores=(0.0, 0.0))
    metrics.feed(entry(3.0, ev.TimerFired(), train))
    (row,) = metrics.feed(entry(4.0, ev.StepTrained(version=Version(6), seconds=1.0, metrics=())))
    assert (row["staleness/mean"], row["staleness/max"], row["staleness/violations"]) == (0.5, 1, 1)


def test_an_evaluation_by_hand() -> None:
    metrics = Metrics()
    groups = (GroupId("heldout", 3, 0), GroupId("heldout", 3, 1))
    ids = [ResponseId(group, member) for group in groups for member in (0, 1)]
    finished = tuple(ev.Finished(response=i, length=4, finish=Finish.STOP) for i in ids)
    metrics.feed(entry(0.0, ev.TimerFired(), submit(*ids)))
    report = ev.RolloutReported(instance=INSTANCE, version=Version(3), finished=finished)
    metrics.feed(entry(1.0, report, score(*ids)))
    scored = tuple(
        ev.Scored(response=i, outcome=Outcome.OK, score=s, seconds=0.1) for i, s in zip(ids, (1, 0, 0, 0), strict=True)
    )
    close = do.CloseEvaluation(version=Version(3), source="heldout", groups=groups)
    (row,) = metrics.feed(entry(2.0, ev.ResponsesScored(scores=scored), close))
    assert (row["step"], row["eval/heldout/avg@2"], row["eval/heldout/pass@2"]) == (3, 0.25, 0.5)


def test_a_snapshot_at_any_entry_changes_no_row() -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=2,
        max_steps=3,
        eval_sets=(EvalSet(name="heldout", num_prompts=2, group_size=1),),
        eval_interval=1,
    )
    world = World(schedule, random.Random(5), trouble=0.05)
    assert world.run().is_complete
    plain = Metrics()
    expected = [row for e in world.entries for row in plain.feed(e)]
    copied = Metrics()
    rows = []
    for item in world.entries:
        copied = Metrics.restore(json.loads(json.dumps(copied.snapshot())))
        rows += copied.feed(item)
    assert rows == expected
    assert len(rows) == 3 + 4


@pytest.mark.parametrize(
    "end",
    [
        ev.InstanceLost(instance=INSTANCE, reason="it was killed"),
        ev.RunResumed(limits=SCHEDULE.limits, checkpoint=None),
        ev.ResponsesAborted(
            instance=INSTANCE, aborted=tuple(ev.Aborted(response=r, length=0) for r in (UNFINISHED, ENDED))
        ),
    ],
    ids=lambda end: type(end).__name__,
)
def test_what_was_given_up_is_forgotten_when_its_instance_has_had_its_last_word(end: ev.Event) -> None:
    metrics = Metrics()
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE), submit(UNFINISHED, ENDED)))
    given_up = (
        do.Abort(instance=INSTANCE, responses=(UNFINISHED, ENDED)),
        do.CloseRound(round=1, is_long=False, accepted=(), dropped=(UNFINISHED.group,)),
    )
    metrics.feed(entry(1.0, ev.TimerFired(), *given_up))
    crossing = ev.RolloutReported(
        instance=INSTANCE,
        version=Version(0),
        progressed=(ev.Progressed(response=UNFINISHED, length=5),),
        finished=(ev.Finished(response=ENDED, length=3, finish=Finish.STOP),),
    )
    metrics.feed(entry(2.0, crossing))
    metrics.feed(entry(3.0, end))
    assert metrics._memory.tokens_total == 8
    assert metrics._run.state.responses == {}


def test_deferred_prompts_that_keep_their_tokens_keep_their_metrics() -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=2,
        group_size=2,
        max_steps=12,
        launch_prompts=4,
        launch_responses=3,
        leftovers=Leftovers.DEFER,
        keep_deferred_tokens=True,
        max_staleness=2,
    )
    world = World(schedule, random.Random(3), num_prompts=29)
    assert world.run().is_complete
    metrics = Metrics()
    rows = [row for item in world.entries for row in metrics.feed(item)]
    steps = [command for item in world.entries for command in item.commands if isinstance(command, do.Accumulate)]
    assert [row["staleness/max"] for row in rows] == [step.version - min(step.oldest) for step in steps]
    assert max(row["staleness/max"] for row in rows) > 0, "no deferred response was resumed"
    reports = [item.event for item in world.entries if isinstance(item.event, ev.RolloutReported)]
    lengths = {news.response: news.length for event in reports for news in (*event.progressed, *event.finished)}
    assert metrics._memory.tokens_total == sum(lengths.values())


def test_what_was_left_out_counts_with_its_scores_and_without_what_has_none() -> None:
    metrics = Metrics()
    trained, scored, unscored, begun_again = (ResponseId(GroupId("train", 0, prompt), 0) for prompt in range(4))
    finished = tuple(
        ev.Finished(response=r, length=4, finish=Finish.STOP) for r in (trained, scored, unscored, begun_again)
    )
    scores = tuple(
        ev.Scored(response=r, outcome=Outcome.OK, score=s, seconds=0.1)
        for r, s in ((trained, 1.0), (scored, 0.5), (begun_again, 0.25))
    )
    everyone = (trained, scored, unscored, begun_again)
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE), submit(*everyone)))
    report = ev.RolloutReported(instance=INSTANCE, version=Version(0), finished=finished)
    metrics.feed(entry(1.0, report, score(*everyone)))
    metrics.feed(entry(2.0, ev.ResponsesScored(scores=scores), do.ReportDropped(restarted=(begun_again.group,))))
    assert begun_again not in metrics._run.state.responses
    unbegun = GroupId("train", 0, 4)
    left_out = do.ReportDropped(filtered=(scored.group,), dropped=(unscored.group, begun_again.group, unbegun))
    train = do.Accumulate(version=Version(0), responses=(trained,), scores=(1.0,))
    metrics.feed(entry(3.0, ev.TimerFired(), left_out, train))
    (row,) = metrics.feed(entry(4.0, ev.StepTrained(version=Version(1), seconds=1.0, metrics=())))
    assert (row["groups/num_dropped"], row["groups/num_samples"]) == (4, 1)
    assert (row["reward/mean"], row["reward/min"]) == (0.75, 0.5)


def test_a_failed_reward_is_counted_although_its_response_left_the_group() -> None:
    metrics = Metrics()
    kept, failed = (ResponseId(GroupId("train", 0, 0), member) for member in (0, 1))
    finished = tuple(ev.Finished(response=r, length=2, finish=Finish.STOP) for r in (kept, failed))
    scores = (
        ev.Scored(response=kept, outcome=Outcome.OK, score=1.0, seconds=0.1),
        ev.Scored(response=failed, outcome=Outcome.ERROR, score=0.0, seconds=0.1),
    )
    train = do.Accumulate(version=Version(0), responses=(kept,), scores=(1.0,))
    metrics.feed(entry(0.0, ev.RunStarted(schedule=SCHEDULE), submit(kept, failed)))
    report = ev.RolloutReported(instance=INSTANCE, version=Version(0), finished=finished)
    metrics.feed(entry(1.0, report, score(kept, failed)))
    metrics.feed(entry(2.0, ev.ResponsesScored(scores=scores), train))
    (row,) = metrics.feed(entry(3.0, ev.StepTrained(version=Version(1), seconds=1.0, metrics=())))
    assert (row["reward/num_error"], row["reward/mean"], row["groups/num_samples"]) == (1, 1.0, 1)


def test_percentiles_are_members_of_the_sample() -> None:
    assert [percentile([1, 2, 3, 4], share) for share in (0.0, 0.5, 0.95, 1.0)] == [1, 3, 4, 4]
