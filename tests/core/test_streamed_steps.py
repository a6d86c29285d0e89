"""Streamed steps: complete groups are trained while their round runs, each exactly once, whatever goes wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given

from core.histories import (
    Case,
    History,
    active_partial,
    cases,
    check_batches,
    check_bound,
    check_conservation,
    held_to,
    lagging_cases,
    lending,
    one_schedule,
    tail_batching,
)
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.schedule import Placement, Schedule, Stream


def streamed(rng: random.Random, **changes: object) -> Schedule:
    """Any schedule that streams. Half of them lend instances."""
    make = rng.choice([one_schedule, tail_batching, active_partial])
    chosen = {"stream": rng.choice([Stream.ALWAYS, Stream.ALWAYS, Stream.ONCE]), "stream_groups": rng.randint(1, 2)}
    lends = rng.random() < 0.5
    if lends:
        chosen |= lending(rng, rng.randint(2, 4))
    if lends and make is not tail_batching:
        chosen |= {"batch_size": rng.randint(3, 6), "launch_prompts": 0}
    if make is one_schedule:
        places = list(Placement)[0 if lends else 1 :]
        chosen |= {"placement": rng.choice(places), "is_reward_streamed": True}
    return make(rng, **{**chosen, **changes})


def pieces(found: History) -> dict[Version, list[do.Accumulate]]:
    """The pieces of each step that was taken, as they were sent the last time."""
    sent: dict[Version, list[do.Accumulate]] = {}
    for command in found.commands:
        if isinstance(command, do.Accumulate):
            sent[command.version] = [*(sent[command.version] if command.piece else []), command]
    return sent


def check_order(found: History) -> None:
    """Before the first piece of a step its version is published, evaluated and saved; none of it comes between."""
    schedule, published, evaluated, is_step_open = found.schedule, Version(0), set[tuple[int, str]](), False
    for entry in found.world.entries:
        match entry.event:
            case ev.WeightsPublished(version=version):
                published = version
            case ev.StepTrained():
                is_step_open = False
            case ev.TrainerLost() | ev.RunResumed():
                is_step_open = False
                published = min(published, Version(0))  # what was published is lost, but for what instances start with
        ends_round = any(isinstance(command, do.FinishStep) for command in entry.commands)
        for command in entry.commands:
            match command:
                case do.CloseEvaluation(version=version, source=source):
                    evaluated.add((version, source))
                case do.PublishWeights() | do.SaveCheckpoint():
                    assert not is_step_open
                case do.Accumulate(version=version):
                    is_step_open = True
                    assert ends_round or published == version, "it is not published"
                    due = schedule.eval_sets if schedule.is_eval_due(version) else ()
                    assert {(version, each.name) for each in due} <= evaluated


def check_pieces(found: History) -> None:
    """What was committed is trained in its step, once, in the same pieces whenever they are sent again."""
    first: dict[tuple[Version, int], do.Accumulate] = {}
    steps = {step.version: step for step in found.steps()}
    for command in found.commands:
        if not isinstance(command, do.Accumulate):
            continue
        assert {r.group for r in command.responses} <= {r.group for r in steps[command.version].responses}
    for version, sent in pieces(found).items():
        assert [piece.piece for piece in sent] == list(range(len(sent)))
        groups = Counter(group for piece in sent for group in {r.group for r in piece.responses})
        assert set(groups.values()) == {1}, "a group is in two pieces"
        for piece in sent[:-1]:
            assert len({r.group for r in piece.responses}) >= found.schedule.stream_groups
        if found.schedule.stream is Stream.ONCE:
            assert len(sent) <= 2
        first |= {(version, piece.piece): piece for piece in sent}


def check(found: History) -> None:
    check_order(found)
    if not found.verdict.is_complete:
        assert any(words in found.verdict.reason for words in ("failing reward", "equal scores"))
        return
    check_conservation(found)
    check_batches(found)
    check_bound(found)
    check_pieces(found)


def check_trained(found: History) -> None:
    """What the trainer had when it finished each step is what the step was asked for."""
    steps = found.steps()
    assert found.world.trained == [step.responses for step in steps[: len(found.world.trained)]]
    assert len(found.world.trained) == found.world.coordinator.version


@held_to(60)
@given(cases(streamed, 0.0, 0.02, 0.05))
def test_any_streamed_history_trains_each_committed_group_once(case: Case) -> None:
    found = case.run(checks=True)
    check(found)
    check_trained(found)


@held_to(15)
@given(lagging_cases(streamed, filters_equal_scores=False))
def test_slow_and_lost_news_harms_no_streamed_step(case: Case) -> None:
    check(case.run_lagging(checks=True))


@pytest.mark.long
@pytest.mark.timeout(1500)
@held_to(1100)
@given(cases(streamed, 0.0, 0.02, 0.05))
def test_many_streamed_histories_train_each_committed_group_once(case: Case) -> None:
    found = case.run(checks=True)
    check(found)
    check_trained(found)


@pytest.mark.long
@pytest.mark.timeout(1500)
@held_to(900)
@given(lagging_cases(streamed, filters_equal_scores=False))
def test_slow_and_lost_news_harms_none_of_many_streamed_steps(case: Case) -> None:
    check(case.run_lagging(checks=True))
