"""Where the seconds of a step went, by hand. That they add up in any history is checked in ``test_any_history.py``."""

from __future__ import annotations

import pytest

from observe.test_round_metrics import (
    BEGUN,
    FIRST,
    HELDOUT,
    ROUND,
    SCHEDULE,
    SECOND,
    SURPLUS,
    A,
    B,
    accumulate,
    entry,
    report,
    start,
    submit,
)
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.observe.time_use.step_parts import StepParts

TRAINED = ev.StepTrained(version=Version(1), seconds=1.0, metrics=())


def followed(entries: list[Entry]) -> tuple[StepParts, list[Row]]:
    """The parts of the steps, and the rows of metrics from the same fold."""
    run = RunFold()
    parts, metrics, rows = StepParts(run), Metrics(run), list[Row]()
    for each in entries:
        for news in run.feed(each):
            parts.hear(news)
            rows += metrics.hear(news)
    return parts, rows


def parts_of(entries: list[Entry]) -> dict[str, float]:
    """The parts of the only step, which add up to what the metrics say."""
    parts, (row,) = followed(entries)
    (found,) = parts.steps
    assert sum(found.values()) == pytest.approx(row["timing_s/step"] + row["timing_s/eval"])
    return found


def scored(*responses: ResponseId) -> ev.ResponsesScored:
    return ev.ResponsesScored(
        scores=tuple(ev.Scored(response=r, outcome=Outcome.OK, score=1.0, seconds=0.1) for r in responses)
    )


def test_each_second_belongs_to_one_part() -> None:
    """The surplus goes on while the first second of the step is trained."""
    entries = [
        *BEGUN,
        entry(3.0, report(FIRST, {}, {A: 3, B: 5}), do.Score(responses=(A, B)), accumulate(A, B)),
        entry(4.0, ev.TimerFired(), do.Abort(instance=SECOND, responses=(SURPLUS,))),
        entry(5.0, report(SECOND, {}, {SURPLUS: 4})),
        entry(7.0, TRAINED),
    ]
    assert parts_of(entries) == {"start workers": 1.0, "generate": 2.0, "generate and train": 2.0, "train": 2.0}


def test_a_restart_of_all_instances_is_not_generating() -> None:
    entries = [
        *BEGUN,
        entry(2.0, ev.InstanceLost(instance=SECOND, incarnation=1, reason="killed"), do.Abort(
            instance=SECOND, responses=(SURPLUS,))),
        entry(3.0, ev.InstanceLost(instance=FIRST, incarnation=1, reason="killed"), start(FIRST, incarnation=2)),
        entry(13.0, ev.InstanceStarted(instance=FIRST, incarnation=2, version=Version(0)), submit(FIRST, A, B)),
        entry(15.0, report(FIRST, {}, {A: 1, B: 1}, start=2), accumulate(A, B)),
        entry(16.0, TRAINED),
    ]  # fmt: skip
    assert parts_of(entries) == {"start workers": 11.0, "generate": 4.0, "train": 1.0}
    _, (row,) = followed(entries)
    assert row["timing_s/gen"] == 14.0, "the metric is a span of time, and contains the restart"


def test_the_time_in_which_the_processes_of_a_resumed_run_were_gone_is_a_start() -> None:
    entries = [
        *BEGUN,
        entry(9.0, ev.RunResumed(limits=SCHEDULE.limits, checkpoint=None), start(FIRST, incarnation=2)),
        entry(12.0, ev.InstanceStarted(instance=FIRST, incarnation=2, version=Version(0)), submit(FIRST, A, B)),
        entry(15.0, report(FIRST, {}, {A: 1, B: 1}, start=2), accumulate(A, B)),
        entry(16.0, TRAINED),
    ]
    parts = parts_of(entries)
    assert (parts["start workers"], parts["generate"], parts["train"]) == (12.0, 3.0, 1.0)


def test_waits_for_rewards_and_evaluations_have_their_parts() -> None:
    entries = [
        *BEGUN[:1],
        entry(1.0, ev.TimerFired(), submit(SECOND, HELDOUT)),
        entry(3.0, report(SECOND, {}, {HELDOUT: 1}), submit(FIRST, A, B)),
        entry(6.0, report(FIRST, {}, {A: 3, B: 5}), do.Score(responses=(A, B))),
        entry(10.0, scored(A, B), accumulate(A, B)),
        entry(15.0, TRAINED),
    ]
    parts = parts_of(entries)
    assert (parts["evaluate"], parts["generate"], parts["wait for rewards"], parts["train"]) == (2.0, 3.0, 4.0, 5.0)


def test_the_step_in_progress_is_kept_apart() -> None:
    parts, _ = followed(ROUND[:-1])
    assert parts.steps == []
    assert sum(parts.current.values()) == ROUND[-2].now
