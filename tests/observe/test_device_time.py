"""The pause of a run that was interrupted counts nowhere, and of its starts only one."""

from __future__ import annotations

from observe.test_schedule_account import FIRED, I0, NEW, OLD, RESUMED, SYNC, account, ended, response, submit, train
from observe.test_schedule_account import trained as step_trained
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.observe.schedules.schedule_account import ScheduleFigures

A, B = response(0), response(1)
START = (do.StartTrainer(), do.StartInstance(instance=I0))
STARTED = ev.InstanceStarted(instance=I0, version=OLD)
Told = tuple[float, ev.Event, tuple[do.Command, ...]]


def reached(version: int) -> ev.TrainerReached:
    return ev.TrainerReached(version=Version(version))


def figures(*history: Told) -> ScheduleFigures:
    return account(SYNC, *history).figures()


FIRST_START: tuple[Told, ...] = (
    (1.0, FIRED, START),
    (5.0, STARTED, (submit(A),)),
    (10.0, reached(0), ()),
)
FIRST_STEP: tuple[Told, ...] = (
    (12.0, ended(OLD, (A, 4)), (train(OLD, A),)),
    (13.0, step_trained(1), (do.PublishWeights(version=NEW),)),
)


def second_step(at: float) -> tuple[Told, ...]:
    return (
        (at, ev.WeightsPulled(instance=I0, version=NEW, seconds=0.1), (submit(B),)),
        (at + 2.0, ended(NEW, (B, 4)), (train(NEW, B),)),
        (at + 3.0, step_trained(2), ()),
    )


def test_a_pause_and_the_second_start_are_no_part_of_the_wall_time_or_of_a_step() -> None:
    whole = figures(*FIRST_START, *FIRST_STEP, *second_step(13.0))
    assert (whole.wall_s, whole.seconds_per_step) == (16.0, 3.0)
    again = (
        (113.0, RESUMED, START),
        (117.0, STARTED, ()),
        (120.0, reached(0), ()),  # not there yet: a step after the checkpoint is taken again
        (130.0, reached(1), (do.PublishWeights(version=NEW),)),
    )
    cut = figures(*FIRST_START, *FIRST_STEP, *again, *second_step(131.0))
    assert (cut.wall_s, cut.seconds_per_step) == (whole.wall_s, whole.seconds_per_step)
    assert (cut.bubble_share, cut.rollout_tokens_per_s) == (whole.bubble_share, whole.rollout_tokens_per_s)


def test_a_run_that_is_interrupted_again_while_it_starts_is_still_paused() -> None:
    again = ((113.0, RESUMED, START), (117.0, STARTED, ()), (150.0, RESUMED, START), (153.0, STARTED, ()))
    cut = figures(*FIRST_START, *FIRST_STEP, *again, (160.0, reached(1), ()), *second_step(161.0))
    assert (cut.wall_s, cut.seconds_per_step) == (16.0, 3.0)


def test_of_a_start_that_was_interrupted_only_the_second_counts() -> None:
    resumed = (100.0, RESUMED, START)
    later = tuple((now + 99.0, event, commands) for now, event, commands in (*FIRST_START[1:], *FIRST_STEP))
    before_any_work = figures(FIRST_START[0], resumed, *later)
    while_the_trainer_starts = figures(*FIRST_START[:2], resumed, *later)
    assert before_any_work.wall_s == while_the_trainer_starts.wall_s == 12.0
    assert before_any_work.seconds_per_step == while_the_trainer_starts.seconds_per_step == 3.0
