from __future__ import annotations

import random
from dataclasses import replace

import pytest

from core import histories
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Leftovers, Limits, Placement, Schedule
from tailrace.observe.schedules.schedule_account import ScheduleAccount

I0, I1 = InstanceId(0), InstanceId(1)
OLD, NEW = Version(0), Version(1)


def response(prompt: int, member: int = 0) -> ResponseId:
    return ResponseId(GroupId("train", 0, prompt), member)


def submit(*responses: ResponseId, instance: InstanceId = I0) -> do.Submit:
    dispatches = tuple(do.Dispatch(response=response, start=0) for response in responses)
    return do.Submit(instance=instance, dispatches=dispatches)


def ended(version: Version, *ends: tuple[ResponseId, int], finish: Finish = Finish.STOP) -> ev.RolloutReported:
    finished = tuple(ev.Finished(response=r, length=length, finish=finish) for r, length in ends)
    return ev.RolloutReported(instance=I0, version=version, finished=finished)


def train(version: Version, *responses: ResponseId) -> do.Accumulate:
    return do.Accumulate(version=version, responses=responses, scores=(1.0,) * len(responses))


def trained(version: int) -> ev.StepTrained:
    return ev.StepTrained(version=Version(version), seconds=1.0, metrics=())


def account(
    schedule: Schedule, *entries: tuple[float, ev.Event, tuple[do.Command, ...]], training_devices: float = 1.0
) -> ScheduleAccount:
    made = ScheduleAccount(training_devices=training_devices)
    made.feed(Entry(now=0.0, event=ev.RunStarted(schedule=schedule), commands=()))
    for now, event, commands in entries:
        made.feed(Entry(now=now, event=event, commands=commands))
    return made


SYNC = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=2)
PARTIAL = Schedule(
    train_source="train",
    batch_size=1,
    group_size=1,
    max_steps=2,
    launch_prompts=2,
    leftovers=Leftovers.RESUME,
    max_staleness=None,
)
FIRED = ev.TimerFired()
RESUMED = ev.RunResumed(limits=Limits(), checkpoint=None)


def test_aborted_deferred_and_surplus_tokens_are_wasted() -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=1,
        group_size=1,
        max_steps=1,
        launch_prompts=2,
        launch_responses=2,
        leftovers=Leftovers.DEFER,
    )
    a, surplus, running, done = response(0), response(0, 1), response(1), response(1, 1)
    close = do.CloseRound(round=0, is_long=False, accepted=(a.group,), deferred=(running.group,))
    lost = (ev.Aborted(response=surplus, length=7), ev.Aborted(response=running, length=40))
    made = account(
        schedule,
        (1.0, FIRED, (submit(a, surplus, running, done),)),
        (2.0, ended(OLD, (a, 10), (done, 4)), (close, train(OLD, a))),
        (3.0, ev.ResponsesAborted(instance=I0, aborted=lost), ()),
        (4.0, trained(1), ()),
    )
    figures = made.figures()
    assert (figures.tokens_generated, figures.tokens_trained, figures.tokens_wasted) == (61, 10, 51)
    assert made.tokens_held == 0
    assert (figures.rounds_short, figures.rounds_long) == (1, 0)


def test_interrupted_tokens_are_held_carried_and_stale() -> None:
    a, b = response(0), response(1)
    made = account(
        PARTIAL,
        (1.0, FIRED, (submit(a, b),)),
        (2.0, ended(OLD, (a, 10)), ()),
        (2.5, ended(OLD, (b, 6), finish=Finish.INTERRUPTED), (train(OLD, a),)),
        (3.0, trained(1), (submit(b),)),
    )
    assert made.tokens_held == 6
    for now, event, commands in ((4.0, ended(NEW, (b, 16)), (train(NEW, b),)), (5.0, trained(2), ())):
        made.feed(Entry(now=now, event=event, commands=commands))
    figures = made.figures()
    assert (figures.tokens_trained, figures.tokens_wasted, made.tokens_held) == (26, 0, 0)
    assert figures.carried_share == pytest.approx(6 / 26)
    assert (figures.staleness_mean, figures.staleness_max, figures.staleness_violations) == (0.5, 1, 0)
    assert (figures.versions_mean, figures.versions_max) == (1.5, 2)


def test_a_stale_sample_under_a_bound_is_a_violation() -> None:
    a = response(0)
    made = account(SYNC, (1.0, FIRED, (submit(a),)), (2.0, ended(OLD, (a, 5)), (train(NEW, a),)), (3.0, trained(2), ()))
    assert made.figures().staleness_violations == 1


def test_a_filtered_group_is_wasted() -> None:
    schedule = Schedule(train_source="train", batch_size=1, group_size=2, max_steps=1, filters_equal_scores=True)
    a, b = response(0), response(0, 1)
    scores = tuple(ev.Scored(response=r, outcome=Outcome.OK, score=1.0, seconds=0.1) for r in (a, b))
    made = account(
        schedule,
        (1.0, FIRED, (submit(a, b),)),
        (2.0, ended(OLD, (a, 5), (b, 6)), (do.Score(responses=(a, b)),)),
        (3.0, ev.ResponsesScored(scores=scores), (do.ReportDropped(filtered=(a.group,)),)),
    )
    assert (made.figures().tokens_wasted, made.tokens_held) == (11, 0)


def test_bubbles_are_device_seconds_without_work() -> None:
    two = Schedule(train_source="train", batch_size=2, group_size=1, max_steps=1, num_instances=2)
    apart = Schedule(
        train_source="train",
        batch_size=2,
        group_size=1,
        max_steps=1,
        num_instances=2,
        placement=Placement.DISAGGREGATED,
    )
    a, b = response(0), response(1)
    history = (
        (10.0, FIRED, (submit(a), submit(b, instance=I1))),  # what came before is not counted
        (14.0, ended(OLD, (a, 5)), ()),
        (
            18.0,
            ev.RolloutReported(instance=I1, version=OLD, finished=(ended(OLD, (b, 9)).finished)),
            (train(OLD, a, b),),
        ),
        (20.0, trained(1), ()),
        (30.0, FIRED, ()),  # nor what follows the last step
    )
    shared = account(two, *history).figures()
    assert shared.seconds_per_step == 10.0
    assert shared.bubble_share == pytest.approx(1 - (4 + 8 + 2 * 2) / 20)
    assert shared.rollout_idle_share == pytest.approx(1 - 12 / 20)
    assert shared.trainer_idle_share == pytest.approx(1 - 2 / 10)
    assert shared.rollout_tokens_per_s == pytest.approx(14 / 8)
    assert shared.wall_s == 30.0
    separate = account(apart, *history, training_devices=3.0).figures()
    assert separate.bubble_share == pytest.approx(1 - (4 + 8 + 3 * 2) / 50)


def test_a_group_that_begins_again_wastes_the_tokens_it_had_kept() -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=1,
        group_size=2,
        max_steps=3,
        launch_prompts=2,
        leftovers=Leftovers.DEFER,
        max_staleness=1,
        keep_deferred_tokens=True,
    )
    done, cut = response(1), response(1, 1)
    close = do.CloseRound(round=0, is_long=False, accepted=(), deferred=(done.group,))
    again = do.OpenRound(round=2, is_long=True, version=NEW, restarted=(done.group,))
    made = account(
        schedule,
        (1.0, FIRED, (submit(done, cut),)),
        (2.0, ended(OLD, (done, 8)), ()),
        (3.0, ended(OLD, (cut, 5), finish=Finish.INTERRUPTED), (close,)),
    )
    assert (made.figures().tokens_wasted, made.tokens_held) == (0, 13)  # deferred, and its tokens are kept
    made.feed(Entry(now=4.0, event=FIRED, commands=(again,)))
    assert (made.figures().tokens_wasted, made.tokens_held) == (13, 0)


def test_a_response_that_begins_again_wastes_what_its_last_attempt_wrote() -> None:
    first = response(0)
    second = first._replace(attempt=1)
    made = account(
        PARTIAL,
        (1.0, FIRED, (submit(first),)),
        (2.0, ended(OLD, (first, 6), finish=Finish.INTERRUPTED), (submit(second),)),
        (3.0, ended(NEW, (second, 9)), (train(NEW, second),)),
        (4.0, trained(2), ()),
    )
    figures = made.figures()
    assert (figures.tokens_generated, figures.tokens_trained, figures.tokens_wasted) == (15, 9, 6)
    assert (figures.carried_share, figures.staleness_max) == (0.0, 0)


def test_tokens_are_carried_if_any_older_version_wrote_them_also_those_of_a_group_that_was_complete() -> None:
    resumed, waited = response(0), response(1)
    two = replace(PARTIAL, batch_size=2, launch_prompts=4)
    made = account(
        two,
        (1.0, FIRED, (submit(resumed, waited),)),
        (2.0, ended(OLD, (resumed, 2), finish=Finish.INTERRUPTED), (submit(resumed),)),
        (3.0, ended(NEW, (resumed, 5), (waited, 7), finish=Finish.INTERRUPTED), (submit(resumed),)),
        (4.0, ended(Version(2), (resumed, 10)), (train(Version(2), resumed, waited),)),
        (5.0, trained(3), ()),
    )
    assert made.figures().carried_share == pytest.approx((2 + 3 + 7) / 17)
    assert made.figures().versions_max == 3


@pytest.mark.parametrize("lost", [ev.InstanceLost(instance=I0, reason="killed"), RESUMED])
def test_a_response_that_was_called_off_is_forgotten_when_its_instance_is_lost(lost: ev.Event) -> None:
    a, b = response(0), response(1)
    made = account(
        PARTIAL,
        (1.0, FIRED, (submit(a, b),)),
        (2.0, ev.RolloutReported(instance=I0, version=OLD, progressed=(ev.Progressed(response=a, length=4),)), ()),
        (3.0, FIRED, (do.Abort(instance=I0, responses=(a,)),)),
        (4.0, lost, (submit(b),)),
        (5.0, ended(OLD, (b, 6)), ()),
    )
    assert (made.figures().tokens_generated, made.figures().tokens_wasted, made.tokens_held) == (10, 4, 6)


@pytest.mark.parametrize("seed", range(12))
def test_tokens_add_up_over_random_histories_of_any_schedule(seed: int) -> None:
    rng = random.Random(seed)
    world = World(histories.any_schedule(rng), rng, num_prompts=histories.NUM_PROMPTS, trouble=0.03)
    world.run()
    made, lengths = ScheduleAccount(), {}
    for entry in world.entries:
        made.feed(entry)
        if isinstance(entry.event, ev.RolloutReported):
            lengths |= {part.response: part.length for part in (*entry.event.progressed, *entry.event.finished)}
        sums = made.figures()
        assert sums.tokens_generated == sums.tokens_trained + sums.tokens_wasted + made.tokens_held
        assert -1e-9 <= sums.bubble_share <= 1
    live = [each for each in world.coordinator.live() if each.group.source == "train"]
    assert made.tokens_held == sum(lengths.get(each, 0) for each in live)
    assert made.figures().num_steps == len(world.trained)
    assert {each.id for each in made._run.in_progress()} <= set(world.coordinator.live())
