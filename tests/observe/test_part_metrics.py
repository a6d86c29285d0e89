"""Metrics of the parts of scores: numbers by hand, limits of test cases, and journals of releases that had one part."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from core.test_adaptive_timeouts import RULES, Programs
from core.world import World
from observe.observers import PartOracle
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import EvalSet, Leftovers, Schedule
from tailrace.observe.account import Account
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.observe.time_use.source_time import DataSeconds, SourceSeconds, SourceTimes

PARTS = (Part.FUNCTION, Part.TESTS, Part.JUDGE)
SCHEDULE = Schedule(
    train_source="train",
    batch_size=1,
    group_size=2,
    max_steps=2,
    score_parts=PARTS,
    eval_sets=(EvalSet(name="heldout", num_prompts=1, group_size=1),),
)
I0 = InstanceId(0)
A, B = (ResponseId(GroupId("train", 0, 0), member) for member in (0, 1))
HELD = ResponseId(GroupId("heldout", 0, 0), 0)


def entry(now: float, event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=now, event=event, commands=commands)


def ended(*responses: ResponseId) -> ev.RolloutReported:
    parts = tuple(ev.Finished(response=response, length=10, finish=Finish.STOP) for response in responses)
    return ev.RolloutReported(instance=I0, version=Version(0), finished=parts)


def ask(*responses: ResponseId) -> list[do.Command]:
    return [do.Score(responses=responses, part=part) for part in PARTS]


def back(part: Part, *scores: ev.Scored) -> ev.ResponsesScored:
    return ev.ResponsesScored(scores=scores, part=part)


def scored(response: ResponseId, seconds: float, queued_s: float = 0.0, **more: object) -> ev.Scored:
    given = {"outcome": Outcome.OK, "score": 1.0, **more}
    return ev.Scored(response=response, seconds=seconds, queued_s=queued_s, **given)  # type: ignore[arg-type]


def submit(*responses: ResponseId) -> do.Submit:
    return do.Submit(instance=I0, dispatches=tuple(do.Dispatch(response=r, start=0) for r in responses))


HISTORY = [
    entry(0.0, ev.RunStarted(schedule=SCHEDULE)),
    entry(1.0, ev.InstanceStarted(instance=I0, version=Version(0)), submit(A, B, HELD)),
    entry(2.0, ended(A), *ask(A)),
    # 2 to 5: A is scored while B is generated; its test cases end at 3, its function at 2.5, its judge at 6.
    entry(2.5, back(Part.FUNCTION, scored(A, 0.5, extras=(("source/math", 1.0),)))),
    entry(3.0, back(Part.TESTS, scored(A, 1.0, 0.0, cut_cases=((1, 0.5), (2, 0.5))))),
    entry(5.0, ended(B, HELD), *ask(B, HELD)),
    # 5 to 9: nothing is generated any more.
    entry(5.5, back(Part.FUNCTION, scored(B, 0.25, 0.25, extras=(("source/code", 0.0),)), scored(HELD, 9.0, 9.0))),
    entry(6.0, back(Part.JUDGE, scored(A, 2.0, 1.0, extras=(("num_tokens", 300.0),)))),
    entry(7.0, back(Part.TESTS, scored(B, 0.0, 2.0, outcome=Outcome.CRASH, score=0.0))),
    entry(8.0, back(Part.TESTS, scored(HELD, 3.0))),
    entry(
        9.0,
        back(Part.JUDGE, scored(B, 1.0, 2.0, extras=(("num_tokens", 400.0),)), scored(HELD, 1.0)),
        do.CloseEvaluation(version=Version(0), source="heldout", groups=(HELD.group,)),
        do.Accumulate(version=Version(0), responses=(A, B), scores=(3.0, 0.0)),
    ),
    entry(11.0, ev.StepTrained(version=Version(1), seconds=1.5, metrics=())),
]


def step(entries: list[Entry]) -> Row:
    metrics = Metrics()
    (row,) = [row for each in entries for row in metrics.feed(each) if "reward/mean" in row]
    return row


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timing_s/step", 10.0),
        ("timing_s/reward_hidden", 3.0),
        ("timing_s/reward_exposed", 4.0),
        ("scoring/function/hidden_s", 0.5),
        ("scoring/function/exposed_s", 0.5),
        ("scoring/function/load", 0.1),
        ("scoring/function/run_s", 0.75),
        ("scoring/function/queued_mean_s", 0.125),
        ("scoring/tests/hidden_s", 1.0),
        ("scoring/tests/exposed_s", 2.0),
        ("scoring/tests/run_s", 1.0),
        ("scoring/tests/queued_max_s", 2.0),
        ("scoring/tests/num_failed", 1),
        ("scoring/tests/num_cut_cases", 2),
        ("scoring/judge/hidden_s", 3.0),
        ("scoring/judge/exposed_s", 4.0),
        ("scoring/judge/load", 0.7),
        ("scoring/judge/queued_mean_s", 1.5),
        ("scoring/judge/tokens_per_s", 100.0),
        ("scoring/judge/num_failed", 0),
    ],
)
def test_a_step_by_hand(name: str, value: float) -> None:
    assert step(HISTORY)[name] == pytest.approx(value)


def test_seconds_of_each_source_by_hand() -> None:
    run = RunFold()
    sources = SourceTimes(run)
    for each in HISTORY:
        for news in run.feed(each):
            sources.hear(news)
    assert sources.seconds == {
        "train": SourceSeconds(rollout_s=4.0, hidden_s=3.0, exposed_s=4.0, training_s=1.5),
        "heldout": SourceSeconds(rollout_s=4.0, exposed_s=4.0),
    }
    assert sources.data == {
        "math": DataSeconds(num_responses=1, num_tokens=10, reward_s=3.5),
        "code": DataSeconds(num_responses=1, num_tokens=10, reward_s=1.25),
    }


def test_a_part_that_does_not_apply_or_was_called_off_neither_failed_nor_queued() -> None:
    entries = list(HISTORY)
    entries[8] = entry(7.0, back(Part.TESTS, scored(B, 0.0, 2.0, outcome=Outcome.ABSTAINED)))
    row = step(entries)
    assert (row["scoring/tests/num_failed"], row["scoring/tests/queued_max_s"]) == (0, 0.0)


def test_scores_that_come_while_a_step_is_trained_are_hidden() -> None:
    again = ResponseId(GroupId("train", 0, 1), 0)
    entries = [
        *HISTORY[:2],
        entry(2.0, ended(A, B), *ask(A, B), submit(again)),
        *(entry(3.0, back(part, scored(A, 1.0), scored(B, 1.0))) for part in PARTS),
        entry(4.0, ended(again, HELD), do.Score(responses=(again,)), HISTORY[-2].commands[1]),
        entry(6.0, ev.StepTrained(version=Version(1), seconds=2.0, metrics=())),
    ]
    row = step(entries)
    assert (row["scoring/function/hidden_s"], row["scoring/function/exposed_s"]) == (3.0, 0.0)


@pytest.mark.parametrize("place", range(1, len(HISTORY)))
def test_metrics_that_are_restored_count_parts_as_before(place: int) -> None:
    metrics = Metrics()
    for each in HISTORY[:place]:
        metrics.feed(each)
    metrics = Metrics.restore(json.loads(json.dumps(metrics.snapshot())))
    rows = [row for each in HISTORY[place:] for row in metrics.feed(each) if "reward/mean" in row]
    assert rows == [step(HISTORY)]


@pytest.mark.parametrize("seed", range(4))
def test_limits_cuts_and_solved_problems_of_a_run_that_learns_them(seed: int) -> None:
    rules = replace(RULES, least_s=0.5, probe_share=0.2)
    schedule = Schedule(
        train_source="train", batch_size=2, group_size=3, max_steps=8, score_parts=(Part.TESTS,), case_time=rules
    )
    world = Programs(schedule, random.Random(seed), trouble=0.02)
    assert world.run().is_complete
    metrics, oracle = Metrics(), PartOracle(source="train")
    rows: list[Row] = []
    for each in world.entries:
        if isinstance(each.event, ev.RunResumed):
            metrics = Metrics.restore(json.loads(json.dumps(metrics.snapshot())))
        rows += metrics.feed(each)
        oracle.feed(each)
    assert rows[-1]["scoring/tests/num_solved_problems"] == len(world.coordinator.rooms.rewards.case_times)
    assert sum(row["scoring/tests/num_probes"] for row in rows) > 0
    assert sum(row["scoring/tests/num_cut_cases"] for row in rows) > 0
    for row, told in zip(rows, oracle.steps, strict=True):
        assert row["scoring/tests/num_cut_cases"] == told.cut
        if told.limits:
            limits = [row[f"scoring/tests/limit_{name}_s"] for name in ("min", "mean", "max")]
            assert limits == [min(told.limits), pytest.approx(sum(told.limits) / len(told.limits)), max(told.limits)]


def test_fixed_limits_are_no_metric() -> None:
    assert not [name for name in step(HISTORY) if "limit" in name or "solved" in name or "probes" in name]


def test_a_run_that_defers_says_which_batches_come_from_long_rounds() -> None:
    schedule = Schedule(
        train_source="train", batch_size=2, group_size=2, max_steps=12, launch_prompts=4, launch_responses=3,
        leftovers=Leftovers.DEFER,
    )  # fmt: skip
    world = World(schedule, random.Random(3), num_prompts=29)
    assert world.run().is_complete
    closed = [c for each in world.entries for c in each.commands if isinstance(c, do.CloseRound)]
    account = Account.of(world.entries)
    assert [row["groups/is_long_round"] for row in account.steps] == [int(each.is_long) for each in closed]
    assert {0, 1} <= {row["groups/is_long_round"] for row in account.steps}
    assert "groups/is_long_round" not in step(HISTORY)
