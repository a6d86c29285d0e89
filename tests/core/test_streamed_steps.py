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
    one_schedule,
    tail_batching,
)
from tailrace.core import commands as do
from tailrace.core.ids import Version
from tailrace.core.schedule import Placement, Schedule, Stream


def streamed(rng: random.Random, **changes: object) -> Schedule:
    """Any schedule that streams."""
    make = rng.choice([one_schedule, tail_batching, active_partial])
    batch_size = rng.randint(2, 4)
    chosen = {"stream": rng.choice([Stream.ALWAYS, Stream.ALWAYS, Stream.ONCE]), "stream_groups": rng.randint(1, 2)}
    if make is one_schedule:
        chosen |= {"placement": rng.choice([Placement.SHARED, Placement.DISAGGREGATED]), "is_reward_streamed": True}
    schedule = make(rng, **chosen, **changes)
    del batch_size
    return schedule


def pieces(found: History) -> dict[Version, list[do.Accumulate]]:
    """The pieces of each step that was taken, as they were sent the last time."""
    sent: dict[Version, list[do.Accumulate]] = {}
    for command in found.commands:
        if isinstance(command, do.Accumulate):
            sent[command.version] = [*(sent[command.version] if command.piece else []), command]
    return sent


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
    if found.world.verdict is not None and found.world.verdict.is_complete:
        assert len(found.world.trained) == found.schedule.max_steps


@given(cases(streamed, 0.0, 0.02, 0.05))
@held_to(60)
def test_any_streamed_history_trains_each_committed_group_once(case: Case) -> None:
    found = case.run(checks=True)
    check_conservation(found)
    check_batches(found)
    check_bound(found)
    check_pieces(found)


@pytest.mark.long
@given(cases(streamed, 0.0, 0.02, 0.05))
@held_to(800)
def test_many_streamed_histories_train_each_committed_group_once(case: Case) -> None:
    found = case.run(checks=True)
    check_conservation(found)
    check_batches(found)
    check_bound(found)
    check_pieces(found)


@pytest.mark.long
@given(lagging_cases(streamed))
@held_to(1200)
def test_slow_and_lost_news_harms_no_streamed_step(case: Case) -> None:
    found = case.run_lagging(checks=True)
    check_conservation(found)
    check_batches(found)
    check_pieces(found)
