"""Which schedules are sound, and what follows from their numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.core.costs import CostModel
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule import Coordination, EpochEnd, EvalSet, Leftovers, Limits, Placement, Schedule
from tailrace.core.schedule.soundness import sound

UNBOUNDED = {"max_staleness": None}
DEFER = {"leftovers": Leftovers.DEFER, "launch_prompts": 6}
KEEP = {"leftovers": Leftovers.KEEP}
RESUME = {"leftovers": Leftovers.RESUME}
FLUSH = {**DEFER, "epoch_end": EpochEnd.FLUSH}


def schedule(**changes: Any) -> Schedule:
    return sound(Schedule(**{"train_source": "train", "batch_size": 4, "group_size": 3, "max_steps": 5, **changes}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"group_size": 0}, "group_size must be at least 1, got 0"),
        ({"num_instances": 0}, "num_instances must be at least 1, got 0"),
        ({"max_in_flight": 0}, "max_in_flight must be at least 1, got 0"),
        ({"max_steps": -1}, "max_steps must be at least 0, got -1"),
        ({"launch_prompts": 3}, "a round of 3 prompts never fills a batch of 4"),
        ({"launch_responses": 2}, "2 responses never fill a group of 3"),
        ({"rounds_ahead": 1, "max_staleness": 1, "placement": Placement.COLOCATED}, "colocated"),
        ({**KEEP, "max_staleness": 1, "placement": Placement.COLOCATED}, "colocated"),
        ({**DEFER, "is_reward_streamed": False}, "only 'wait' without over-provisioning"),
        ({"launch_responses": 4, "is_reward_streamed": False}, "only 'wait' without over-provisioning"),
        ({**KEEP, "is_reward_streamed": False}, "only 'wait' without over-provisioning"),
        ({"launch_prompts": 5}, "'wait' has no leftovers"),
        ({**DEFER, "keep_deferred_tokens": True}, "need 'defer' and max_staleness above 0"),
        ({**KEEP, "max_staleness": 1, "keep_deferred_tokens": True}, "need 'defer' and max_staleness above 0"),
        ({"epoch_end": EpochEnd.FLUSH, "epoch_size": 9}, "only 'defer' has a queue to flush"),
        ({**FLUSH, "epoch_size": 9, "filters_equal_scores": True}, "carry the queue on"),
        ({**FLUSH, "epoch_size": 5}, "a round launches 6 prompts, more than the 5 of an epoch"),
        ({**DEFER, "epoch_size": 13}, "'defer' needs at least 14"),
        ({**DEFER, "epoch_size": 1}, "the 1 prompts may all be waiting: 'defer' needs at least 14"),
        ({"has_quotas": True}, "need 'defer' or 'drop'"),
        ({"max_versions_per_sample": 2}, "it needs 'resume'"),
        ({**KEEP, "rounds_ahead": 1, "max_staleness": 1}, "'keep' has no rounds"),
        ({"admission": AdmissionRule.COUNT}, "it needs 'keep'"),
        ({"admission": AdmissionRule.ORDER}, "it needs 'keep' and no surplus"),
        ({**KEEP, "admission": AdmissionRule.ORDER, "launch_prompts": 5}, "it needs 'keep' and no surplus"),
        ({"max_stuck_s": 9.0}, "only 'keep' under a strict bound can be stuck"),
        (
            {**KEEP, "admission": AdmissionRule.COUNT, "max_stuck_s": 9.0},
            "only 'keep' under a strict bound can be stuck",
        ),
        ({**KEEP, "max_stuck_s": 0.0}, "for more than 0 seconds"),
        ({**KEEP, **UNBOUNDED}, "'keep' without a bound would launch prompts without end"),
        ({"rounds_ahead": 2, "max_staleness": 1}, "trained that many versions late; the bound is 1"),
        ({**RESUME, "launch_prompts": 9, "max_staleness": 1}, "within max_staleness 1: at most 8"),
    ],
)
def test_an_unsound_schedule_is_refused_with_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        schedule(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 1, "group_size": 1, "max_steps": 0, "max_in_flight": 1},
        {"launch_prompts": 4, "launch_responses": 3, "is_reward_streamed": False},
        {"launch_responses": 4},
        {"placement": Placement.COLOCATED},
        {**KEEP, "placement": Placement.COLOCATED},
        {"rounds_ahead": 1, "max_staleness": 1},
        {"rounds_ahead": 1, "max_staleness": 1, "placement": Placement.DISAGGREGATED},
        {**KEEP, "max_staleness": 1, "placement": Placement.DISAGGREGATED},
        {**KEEP, "max_staleness": 1, "admission": AdmissionRule.COUNT},
        {**KEEP, "max_staleness": 1, "admission": AdmissionRule.ORDER, "launch_prompts": 4},
        {**DEFER, "max_staleness": 1, "keep_deferred_tokens": True, "has_quotas": True},
        {**DEFER, **UNBOUNDED, "keep_deferred_tokens": True},
        {**DEFER, "epoch_size": 14, "filters_equal_scores": True},
        {**DEFER, "epoch_size": 0},
        {"epoch_size": 1},
        {**FLUSH, "epoch_size": 6},
        {"leftovers": Leftovers.DROP, "launch_prompts": 6, "has_quotas": True},
        {**RESUME, "launch_prompts": 8, "max_staleness": 1, "max_versions_per_sample": 2},
        {**RESUME, **UNBOUNDED, "launch_prompts": 99, "rounds_ahead": 3},
        {**RESUME, **UNBOUNDED, "launch_prompts": 99, "admission": AdmissionRule.COUNT},
        {**RESUME, **UNBOUNDED, "launch_prompts": 99, "admission": AdmissionRule.ORDER},
        {"max_staleness": 2, "leftovers": Leftovers.WAIT, "admission": AdmissionRule.DEADLINE},
    ],
)
def test_a_schedule_at_the_edge_of_soundness_is_accepted(changes: dict[str, Any]) -> None:
    schedule(**changes)


def test_what_is_launched_is_the_batch_unless_more_is_asked_for() -> None:
    plain, more = schedule(), schedule(**DEFER, launch_responses=5)
    assert (plain.num_launched, plain.num_members) == (4, 3)
    assert (more.num_launched, more.num_members) == (6, 5)


@pytest.mark.parametrize(
    ("changes", "capacity"),
    [
        ({}, 4),
        (DEFER, 6),
        ({**DEFER, "leftovers": Leftovers.DROP}, 6),
        ({**KEEP, "launch_prompts": 6}, 6),
        ({**RESUME, "launch_prompts": 6, "max_staleness": 1}, 4),
    ],
)
def test_only_what_may_be_given_up_is_redundant_in_the_ledger(changes: dict[str, Any], capacity: int) -> None:
    assert schedule(**changes).ledger.capacity == capacity


@pytest.mark.parametrize(
    ("changes", "overlaps"),
    [
        ({}, False),
        ({"max_staleness": 1}, False),
        ({"max_staleness": 1, "rounds_ahead": 1}, True),
        (KEEP, False),
        ({**KEEP, "max_staleness": 1}, True),
    ],
)
def test_rollout_overlaps_training_only_where_something_may_be_stale(changes: dict[str, Any], overlaps: bool) -> None:
    assert schedule(**changes).overlaps is overlaps


def test_evaluations_and_checkpoints_come_at_their_intervals_and_at_the_end() -> None:
    heldout = (EvalSet(name="heldout", num_prompts=2, group_size=1),)
    made = schedule(eval_sets=heldout, eval_interval=2, save_interval=3)
    assert [version for version in range(6) if made.is_eval_due(version)] == [0, 2, 4, 5]
    assert [version for version in range(6) if made.is_save_due(version)] == [3, 5]
    never = schedule(eval_sets=heldout)
    assert not any(never.is_eval_due(version) for version in range(6))
    assert not schedule(eval_interval=2).is_eval_due(2), "there is nothing to evaluate"
    assert [version for version in range(6) if never.is_save_due(version)] == [5]


@pytest.mark.parametrize("name", [n for n in Limits.__dataclass_fields__ if n.endswith("_s") and n != "stop_s"])
def test_the_shortest_limit_is_the_smallest_of_all_but_that_of_a_stop(name: str) -> None:
    assert Limits(**{name: 0.5}).shortest_s == 0.5


def test_a_schedule_of_no_steps_trains_nothing() -> None:
    assert not schedule(max_steps=0).trains
    assert schedule(max_steps=1).trains


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"min_gain": 0.0}, "above 0 and at most 1, got 0.0"),
        ({"min_gain": 1.5}, "above 0 and at most 1, got 1.5"),
        ({"max_waiting": -1}, "got -1 and 5.0"),
        ({"max_gap": 0.5}, "got 3 and 0.5"),
        ({"plan_interval_s": -1.0}, "plan_interval_s must be at least 0, got -1.0"),
        ({"kv_tokens": -1}, "kv_tokens must be at least 0, got -1"),
    ],
)
def test_settings_no_strategy_can_work_with_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Coordination(**changes)


def test_an_instance_holds_what_fits_into_its_cache_and_its_batch() -> None:
    small = Coordination(kv_tokens=30, max_running=3, prompt_length=2)
    blocks = CostModel(k1=0.0, k2=0.0, k3=0.0, k4=1.0, k5=1.5)
    assert small.kv_of(blocks, 14, 3) == 30
    assert small.fits(blocks, 14, 3)
    assert not small.fits(blocks, 15, 3)
    assert not small.fits(blocks, 0, 4)
    assert Coordination().fits(blocks, 10**9, 10**6)
    assert Coordination().kv_of(blocks, 14, 3) == 21, "prompts count only if their length is given"
