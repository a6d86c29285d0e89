"""Every prompt has one fate and every token one group."""

from __future__ import annotations

import random

import pytest

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import EvalSet, Schedule
from tailrace.observe.prompts.fates import DEFERRED, DROPPED, EVALUATED, FILTERED, IN_PROGRESS, OFFERED, TRAINED, Fates

SCHEDULE = Schedule(train_source="train", batch_size=1, group_size=2, max_steps=2)


def entry(event: ev.Event, *commands: do.Command) -> Entry:
    return Entry(now=1.0, event=event, commands=commands)


def submit(*responses: ResponseId) -> do.Submit:
    dispatches = tuple(do.Dispatch(response=r, start=0) for r in responses)
    return do.Submit(instance=InstanceId(0), dispatches=dispatches)


def members(prompt: int) -> list[ResponseId]:
    return [ResponseId(GroupId("train", 0, prompt), member) for member in (0, 1)]


def settled(schedule: Schedule, outcomes: list[tuple[Outcome, float]]) -> Fates:
    """One group, offered, generated (5 tokens each) and scored like this."""
    fates = Fates()
    fates.feed(entry(ev.RunStarted(schedule=schedule)))
    offered = ev.PromptsOffered(source="train", prompts=((0, 7),), next_epoch=0, next_offset=1)
    fates.feed(entry(offered, submit(*members(7))))
    finished = tuple(ev.Finished(response=r, length=5, finish=Finish.STOP) for r in members(7))
    report = ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=finished)
    fates.feed(entry(report, do.Score(responses=tuple(members(7)))))
    for response, (outcome, score) in zip(members(7), outcomes, strict=True):
        scored = ev.Scored(response=response, outcome=outcome, score=score, seconds=0.1)
        fates.feed(entry(ev.ResponsesScored(scores=(scored,))))
    return fates


def test_a_group_that_was_trained_says_in_which_step_and_with_how_many_tokens() -> None:
    fates = settled(SCHEDULE, [(Outcome.OK, 1.0), (Outcome.TIMEOUT, 0.0)])
    fate = fates.groups[GroupId("train", 0, 7)]
    assert fate.state == IN_PROGRESS
    fates.feed(entry(ev.TimerFired(), do.Accumulate(version=Version(0), responses=tuple(members(7)), scores=(1, 0))))
    fates.feed(entry(ev.StepTrained(version=Version(1), seconds=1.0, metrics=())))
    assert (fate.state, fate.step, fate.num_tokens, fate.mean_score, fate.num_failed) == (TRAINED, 1, 10, 0.5, 1)
    assert fates.lengths[0].generated == fates.lengths[0].trained == [5, 5]


GROUP = GroupId("train", 0, 7)


def test_a_reward_that_was_called_off_is_neither_a_failure_nor_a_score_of_nothing() -> None:
    fates = settled(SCHEDULE, [(Outcome.OK, 1.0), (Outcome.ABORTED, 0.0)])
    assert (fates.groups[GROUP].mean_score, fates.groups[GROUP].num_failed) == (1.0, 0)
    assert fates.settled() == [], "its second response has no reward"


@pytest.mark.parametrize(
    ("command", "state"),
    [
        (do.ReportDropped(dropped=(GROUP,)), DROPPED),
        (do.ReportDropped(filtered=(GROUP,)), FILTERED),
        (do.ReportDropped(restarted=(GROUP,)), IN_PROGRESS),
        (do.CloseRound(round=0, is_long=False, accepted=(), dropped=(GROUP,)), DROPPED),
        (do.CloseRound(round=0, is_long=False, accepted=(), deferred=(GROUP,)), DEFERRED),
    ],
)
def test_the_tokens_of_a_group_that_is_not_trained_are_wasted(command: do.Command, state: str) -> None:
    fates = settled(SCHEDULE, [(Outcome.OK, 1.0), (Outcome.OK, 1.0)])
    assert fates.groups[GROUP].num_wasted == 0
    fates.feed(entry(ev.TimerFired(), command))
    assert (fates.groups[GROUP].state, fates.groups[GROUP].num_wasted) == (state, 10)


def test_a_deferred_group_comes_back_and_wastes_what_it_had() -> None:
    fates = settled(SCHEDULE, [(Outcome.OK, 1.0), (Outcome.OK, 1.0)])
    fates.feed(entry(ev.TimerFired(), do.CloseRound(round=0, is_long=False, accepted=(), deferred=(GROUP,))))
    again = do.OpenRound(round=1, is_long=True, version=Version(1), num_prompts=1, num_responses=2, restarted=(GROUP,))
    fates.feed(entry(ev.TimerFired(), again))
    fate = fates.groups[GROUP]
    assert (fate.state, fate.num_deferred, fate.num_resumed, fate.num_wasted) == (IN_PROGRESS, 1, 0, 10)


def test_aborted_and_surplus_responses_are_wasted_and_trained_ones_are_not() -> None:
    fates = settled(SCHEDULE, [(Outcome.OK, 1.0), (Outcome.OK, 0.0)])
    extra = ResponseId(GROUP, 2)
    fates.feed(entry(ev.TimerFired(), submit(extra)))
    aborted = (ev.Aborted(response=extra, length=4),)
    fates.feed(entry(ev.ResponsesAborted(instance=InstanceId(0), aborted=aborted)))
    first = members(7)[:1]
    fates.feed(entry(ev.TimerFired(), do.Accumulate(version=Version(0), responses=tuple(first), scores=(1,))))
    fates.feed(entry(ev.StepTrained(version=Version(1), seconds=1.0, metrics=())))
    assert (fates.groups[GROUP].num_tokens, fates.groups[GROUP].num_wasted) == (14, 9)


@pytest.mark.parametrize("seed", range(4))
def test_after_a_whole_run_the_fates_add_up_to_what_was_offered(seed: int) -> None:
    schedule = Schedule(
        train_source="train",
        batch_size=3,
        group_size=2,
        max_steps=4,
        eval_sets=(EvalSet(name="heldout", num_prompts=2, group_size=1),),
        eval_interval=2,
        drops_failed_rewards=True,
    )
    world = World(schedule, random.Random(seed), trouble=0.03)
    finish = world.run()
    fates = Fates()
    for item in world.entries:
        fates.feed(item)
    for is_training in (True, False):
        totals = fates.totals(is_training=is_training)
        offered = totals.pop(OFFERED)
        for name in ("num_groups", "num_responses", "num_tokens"):
            assert sum(getattr(total, name) for total in totals.values()) == getattr(offered, name)
    trained = fates.totals(is_training=True)[TRAINED]
    assert trained.num_groups == len({r.group for batch in world.trained for r in batch})
    if finish.is_complete:
        assert trained.num_groups == 12
        assert fates.totals(is_training=False)[EVALUATED].num_groups == 6
