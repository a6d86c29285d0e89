"""Tail batching: the properties of its specification (section 1.4), each held to random histories.

Properties 6 to 10 are about streamed gradients, timeouts and parallelism, not about rounds.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given

from core.histories import NUM_PROMPTS, Case, cases, check_batches, check_conservation, held_to, history, tail_batching
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.schedule import EpochEnd


@held_to(140)
@given(cases(tail_batching, 0.0, 0.03))
def test_tail_batching_property_1_no_prompt_is_lost_or_duplicated(case: Case) -> None:
    found = case.run()
    check_conservation(found)
    assert max(found.offered().values()) == 1
    assert set(found.trained().values()) == {1}


@held_to(140)
@given(cases(tail_batching, 0.0, 0.03))
def test_tail_batching_property_2_a_batch_is_whole_and_of_one_version(case: Case) -> None:
    found = case.run()
    check_batches(found)
    assert all(set(step.oldest) == {step.version} for step in found.steps())


@held_to(140)
@given(cases(tail_batching))
def test_tail_batching_property_3_the_queue_grows_and_shrinks_by_the_rule(case: Case) -> None:
    schedule, size = case.schedule, 0
    for opened, closed in case.run().rounds():
        assert size < 2 * schedule.batch_size
        size -= len(opened.restarted) + len(opened.resumed)
        size += len(closed.deferred)
        surplus = schedule.num_launched - schedule.batch_size
        assert len(closed.deferred) == (0 if closed.is_long else surplus)
        assert len(opened.restarted) == (schedule.batch_size if opened.is_long else 0)


@held_to(140)
@given(cases(tail_batching))
def test_tail_batching_property_4_the_queue_alone_decides_the_kind_of_a_round_and_none_waits_long(
    case: Case,
) -> None:
    schedule, queue = case.schedule, dict[GroupId, int]()
    bound = 2 * -(-schedule.batch_size // (schedule.num_launched - schedule.batch_size)) + 2
    for opened, closed in case.run().rounds():
        assert opened.is_long == (len(queue) >= schedule.batch_size)
        if opened.is_long:
            assert list(opened.restarted) == list(queue)[: schedule.batch_size], "not the oldest first"
        for group in opened.restarted:
            assert opened.round - queue.pop(group) <= bound
        queue |= dict.fromkeys(sorted(closed.deferred), closed.round)


@held_to(140)
@given(cases(tail_batching))
def test_tail_batching_property_5_nothing_of_a_round_is_left_when_it_ends(case: Case) -> None:
    running: set[ResponseId] = set()
    scoring: set[ResponseId] = set()
    for entry in case.run().world.entries:
        match entry.event:
            case ev.RolloutReported(finished=finished):
                running -= {part.response for part in finished}
            case ev.ResponsesScored(scores=scores):
                scoring -= {scored.response for scored in scores}
        for command in entry.commands:
            match command:
                case do.Submit(dispatches=dispatches):
                    running |= {d.response for d in dispatches if d.response.group.source == "train"}
                case do.Score(responses=responses):
                    scoring |= {r for r in responses if r.group.source == "train"}
                case do.Abort(responses=responses):
                    running -= set(responses)
                case do.AbortScores(responses=responses):
                    scoring -= set(responses)
                case do.CloseRound():
                    assert not running
                    assert not scoring


def test_the_default_rhythm_is_four_short_rounds_and_a_long_one() -> None:
    schedule = tail_batching(
        random.Random(0), batch_size=4, group_size=2, launch_prompts=5, launch_responses=3, max_steps=11
    )
    found = history(schedule, random.Random(1), trouble=0.0)
    kinds = [opened.is_long for opened, _ in found.rounds()]
    assert kinds == ([False] * 4 + [True]) * 2 + [False]


@held_to(35)
@given(cases(tail_batching, filters_equal_scores=True, group_size=2, launch_responses=2))
def test_filtered_groups_leave_and_long_rounds_are_topped_up(case: Case) -> None:
    found = case.run()
    if found.verdict.is_complete:
        check_batches(found)
        check_conservation(found)


@held_to(35)
@given(cases(tail_batching, epoch_end=EpochEnd.FLUSH, max_steps=14))
def test_flushed_epochs_train_every_prompt_exactly_once_per_pass(case: Case) -> None:
    found = case.run()
    assert found.verdict.is_complete
    epochs = Counter(group.epoch for group in found.trained())
    newest = max(epochs)
    assert all(count == NUM_PROMPTS for epoch, count in epochs.items() if epoch < newest)
    passes = [{r.group.epoch for r in step.responses} for step in found.steps()]
    assert passes == sorted(passes, key=min), "a pass began again"
    assert all(len(epochs) == 1 for epochs in passes), "a step mixes two passes"
