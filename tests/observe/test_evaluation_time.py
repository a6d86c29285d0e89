"""Evaluation is no training rollout: seconds in which its responses run alone, and its tokens, are told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from observe.test_schedule_account import I0, I1, OLD, ended, response, submit, train, trained
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import EvalSet, Schedule
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.schedules.schedule_account import ScheduleAccount
from tailrace.observe.time_use.phases import EVALUATE, ROLLOUT, PhaseTimes

SCHEDULE = Schedule(
    train_source="train",
    batch_size=1,
    group_size=1,
    max_steps=2,
    num_instances=2,
    eval_sets=(EvalSet(name="heldout", num_prompts=1, group_size=1),),
    eval_interval=1,
)
A = response(0)
E = ResponseId(GroupId("heldout", 0, 0), 0)
STARTED = [ev.InstanceStarted(instance=instance, version=OLD) for instance in (I0, I1)]
CLOSED = do.CloseEvaluation(version=OLD, source="heldout", groups=(E.group,))


def scored(response: ResponseId) -> ev.ResponsesScored:
    return ev.ResponsesScored(scores=(ev.Scored(response=response, outcome=Outcome.OK, score=1.0, seconds=0.1),))


def entry(now: float, event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=now, event=event, commands=commands)


BESIDE_THEN_ALONE = [
    entry(0.0, ev.RunStarted(schedule=SCHEDULE)),
    entry(1.0, STARTED[0]),
    entry(1.0, STARTED[1], submit(A, E)),
    entry(3.0, ended(OLD, (A, 10)), do.Score(responses=(A,))),
    entry(3.5, scored(A)),
    entry(6.0, ended(OLD, (E, 40)), do.Score(responses=(E,))),
    entry(6.5, scored(E), CLOSED, train(OLD, A)),
    entry(8.0, trained(1)),
]
"""The evaluation response runs beside the training response for 2 s, then alone for 3 s."""

ALONE_THEN_BESIDE = [
    entry(0.0, ev.RunStarted(schedule=SCHEDULE)),
    entry(1.0, STARTED[0], submit(E)),
    entry(2.0, STARTED[1]),
    entry(4.0, ev.TimerFired(), submit(A, instance=I1)),
    entry(6.0, ended(OLD, (E, 40)), do.Score(responses=(E,))),
    entry(6.0, scored(E), CLOSED),
    entry(
        7.0,
        ev.RolloutReported(instance=I1, version=OLD, finished=ended(OLD, (A, 10)).finished),
        do.Score(responses=(A,)),
    ),
    entry(7.5, scored(A), train(OLD, A)),
    entry(9.0, trained(1)),
]
"""The evaluation response runs alone for 3 s; then both run for 2 s; then the training response for 1 s."""


def step_row(entries: list[Entry]) -> Row:
    metrics = Metrics()
    (row,) = [row for each in entries for row in metrics.feed(each) if "reward/mean" in row]
    return row


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timing_s/eval", 3.0),
        ("timing_s/step", 4.0),
        ("timing_s/gen", 2.0),
        ("timing_s/reward_exposed", 0.0),
        ("timing_s/since_start", 8.0),
        ("perf/tokens_per_s", 10 / 4.0),
        ("perf/eval_tokens", 40),
        ("perf/tokens_total", 50),
        ("idle/rollout_ratio", 1 - 2.0 / 4.0),
        ("idle/trainer_ratio", 1 - 1.0 / 4.0),
    ],
)
def test_seconds_and_tokens_of_an_evaluation_that_outlasts_the_rollout_are_its_own(name: str, value: float) -> None:
    assert step_row(BESIDE_THEN_ALONE)[name] == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timing_s/eval", 3.0),
        ("timing_s/step", 5.0),
        ("timing_s/gen", 3.0),
        ("timing_s/reward_exposed", 0.5),
        ("perf/tokens_per_s", 10 / 5.0),
        ("perf/eval_tokens", 40),
        # Of two instances: both work for 2 s, one for 1 s.
        ("idle/rollout_ratio", 1 - 5.0 / (2 * 5.0)),
    ],
)
def test_seconds_and_tokens_of_an_evaluation_that_comes_first_are_its_own(name: str, value: float) -> None:
    assert step_row(ALONE_THEN_BESIDE)[name] == pytest.approx(value)


def test_a_step_without_evaluation_has_none() -> None:
    entries = [
        *BESIDE_THEN_ALONE[:2],
        entry(1.0, STARTED[1], submit(A)),
        *BESIDE_THEN_ALONE[3:4],
        entry(3.5, scored(A), train(OLD, A)),
        entry(5.0, trained(1)),
    ]
    row = step_row(entries)
    assert (row["timing_s/eval"], row["perf/eval_tokens"], row["timing_s/step"]) == (0.0, 0, 4.0)


@pytest.mark.parametrize(
    ("entries", "step_s", "generating_s"), [(BESIDE_THEN_ALONE, 4.0, 2.0), (ALONE_THEN_BESIDE, 5.0, 3.0)]
)
def test_a_comparison_of_schedules_leaves_evaluation_out_of_steps_and_speed(
    entries: list[Entry], step_s: float, generating_s: float
) -> None:
    account = ScheduleAccount()
    for each in entries:
        account.feed(each)
    figures = account.figures()
    assert figures.seconds_per_step == pytest.approx(step_s)
    assert figures.evaluation_s == pytest.approx(3.0)
    assert figures.rollout_tokens_per_s == pytest.approx(10 / generating_s)
    assert figures.wall_s == entries[-1].now


def test_the_phase_of_evaluation_is_where_its_responses_run_alone() -> None:
    kinds = (ROLLOUT, EVALUATE)
    phases = [phase for phase in PhaseTimes.of(BESIDE_THEN_ALONE).all() if phase.kind in kinds]
    assert [(phase.kind, phase.start, phase.end) for phase in phases] == [(ROLLOUT, 0.0, 2.0), (EVALUATE, 2.0, 5.0)]
    phases = [phase for phase in PhaseTimes.of(ALONE_THEN_BESIDE).all() if phase.kind in kinds]
    assert [(phase.kind, phase.start, phase.end) for phase in phases] == [(EVALUATE, 0.0, 3.0), (ROLLOUT, 3.0, 6.0)]


@pytest.mark.parametrize("entries", [BESIDE_THEN_ALONE, ALONE_THEN_BESIDE])
@pytest.mark.parametrize("place", range(1, 9))
def test_metrics_that_are_restored_tell_evaluation_apart_as_before(entries: list[Entry], place: int) -> None:
    metrics = Metrics()
    for each in entries[:place]:
        metrics.feed(each)
    metrics = Metrics.restore(json.loads(json.dumps(metrics.snapshot())))
    rows = [row for each in entries[place:] for row in metrics.feed(each) if "reward/mean" in row]
    assert rows in ([], [step_row(entries)])


def test_metrics_of_a_checkpoint_that_knows_nothing_of_this_can_be_read() -> None:
    """Checkpoints of earlier versions hold the busy seconds of each instance, and no seconds of evaluation."""
    metrics = Metrics()
    for each in BESIDE_THEN_ALONE[:3]:
        metrics.feed(each)
    snapshot: dict[str, Any] = json.loads(json.dumps(metrics.snapshot()))
    memory: dict[str, Any] = {"busy_since": {"0": 1.0}, "lengths": snapshot["memory"]["lengths"], "tokens_total": 7}
    memory["clock"] = {"step_began": 1.0, "first_submit": 1.0, "busy_s": {"0": 0.0}, "num_tokens": 0}
    old = Metrics.restore({"run": snapshot["run"], "memory": memory})
    (row,) = [row for each in BESIDE_THEN_ALONE[3:] for row in old.feed(each) if "reward/mean" in row]
    assert row == step_row(BESIDE_THEN_ALONE) | {"perf/tokens_total": 57}
