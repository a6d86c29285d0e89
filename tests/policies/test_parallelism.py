"""Parallel sizes by preemptions: when the size is doubled or halved, what a change must save, how long rounds take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.costs import CostModel
from tailrace.core.fleet.length_history import NUM_BINS, LengthHistory
from tailrace.core.fleet.parallelism import ParallelismView, SizeView
from tailrace.core.fleet.sizes import KindOfRound
from tailrace.core.schedule import Division, Parallelism, Schedule
from tailrace.core.schedule.parallelism import layouts_by_order
from tailrace.policies.parallelism.fixed import FixedSize
from tailrace.policies.parallelism.forecast import SizeByForecast
from tailrace.policies.parallelism.preemptions import SizeByPreemptions
from tailrace.policies.parallelism.round_time import RoundWork

DEVICES = 8
COSTS = CostModel(k1=0.0, k2=0.0, k3=0.0, k4=1.0)
FREE = SizeByPreemptions(rise=1.05, least_rise=0.005, quiet_rounds=4, has_price=False)
PRICED = replace(FREE, has_price=True)


def size_view(size: int, **changes: Any) -> SizeView:
    given: dict[str, Any] = {
        "division": Division(size),
        "num_instances": DEVICES // size,
        "kv_tokens": 0,
        "max_running": 0,
        "costs": COSTS,
        "is_measured": True,
        "change_s": 0.0,
    }
    return SizeView(**{**given, **changes})


def view(size: int = 1, sizes: tuple[SizeView, ...] | None = None, **changes: Any) -> ParallelismView:
    given: dict[str, Any] = {
        "size": size,
        "sizes": [size_view(each) for each in (1, 2, 4)] if sizes is None else list(sizes),
        "before": None,
        "last": None,
        "num_launched": 1000,
        "num_quiet": 0,
        "active": [1.0] * 4,
        "max_length": 40,
        "prompt_length": 0,
        "rounds": (10, 0),
        "other_size": size,
        "back_s": 0.0,
    }
    return ParallelismView(**{**given, **changes})


# When


@pytest.mark.parametrize(
    ("before", "last", "chosen"),
    [
        (0.1, 0.2, 2),
        (0.1, 0.105, 1),  # not more than 5 %
        (0.1, 0.1051, 2),
        (0.05, 0.0549, 1),  # more than 5 %, but fewer than 5 more for 1000 responses
        (0.05, 0.0551, 2),
        (0.2, 0.1, 1),
        (0.1, None, 1),
        (None, 0.2, 1),  # with one count nothing is known of a rise
    ],
)
def test_the_size_is_doubled_when_preemptions_rise_enough(
    before: float | None, last: float | None, chosen: int
) -> None:
    assert FREE.choose(view(before=before, last=last)).size == chosen


def test_with_few_responses_one_preemption_more_is_needed() -> None:
    assert FREE.choose(view(before=0.05, last=0.1, num_launched=20)).size == 2
    assert FREE.choose(view(before=0.06, last=0.1, num_launched=20)).size == 1


def test_a_rise_from_none_counts_only_if_the_expected_lengths_do_not_fit() -> None:
    roomy = tuple(size_view(each, kv_tokens=5000) for each in (1, 2))
    assert FREE.choose(view(sizes=roomy, before=0.0, last=0.3)).size == 1, "125 responses of 35 tokens fit"
    tight = tuple(size_view(each, kv_tokens=4000) for each in (1, 2))
    assert FREE.choose(view(sizes=tight, before=0.0, last=0.3)).size == 2
    assert FREE.choose(view(sizes=roomy, before=0.1, last=0.3)).size == 2, "they were preempted before, too"


@pytest.mark.parametrize(("quiet", "chosen"), [(3, 2), (4, 1), (9, 1)])
def test_the_size_is_halved_after_four_rounds_without_a_preemption(quiet: int, chosen: int) -> None:
    assert FREE.choose(view(2, last=0.0, before=0.0, num_quiet=quiet)).size == chosen


def test_there_is_nothing_beyond_the_largest_and_below_the_smallest_size() -> None:
    assert FREE.choose(view(4, before=0.1, last=0.9)).size == 4
    assert FREE.choose(view(1, before=0.0, last=0.0, num_quiet=9)).size == 1


@given(st.floats(0.001, 5.0), st.sampled_from([1, 2, 4]), st.integers(1, 10_000))
def test_a_constant_count_above_zero_changes_nothing(rate: float, size: int, launched: int) -> None:
    assert FREE.choose(view(size, before=rate, last=rate, num_launched=launched)).size == size


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.sampled_from([1, 2, 4]))
def test_sizes_are_always_valid_and_two_changes_have_two_rounds_between_them(counts: list[int], size: int) -> None:
    kind, since = KindOfRound(size=size), 0
    for count in counts:
        kind.round_ended(count, 100)
        since += 1
        told = view(kind.size, before=kind.before, last=kind.last, num_quiet=kind.num_quiet, num_launched=100)
        chosen = FREE.choose(told).size
        assert chosen in (1, 2, 4)
        if chosen != kind.size:
            assert since >= 2
            assert chosen in (kind.size * 2, kind.size // 2)
            kind.change(chosen)
            since = 0


def test_quiet_rounds_lead_down_to_the_smallest_size() -> None:
    kind, seen = KindOfRound(size=4), []
    for _ in range(12):
        kind.round_ended(0, 100)
        chosen = FREE.choose(view(kind.size, before=kind.before, last=kind.last, num_quiet=kind.num_quiet)).size
        if chosen != kind.size:
            kind.change(chosen)
        seen.append(kind.size)
    assert seen == [4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1]


# What it must save


def two(seconds_of_two: float, change_s: float) -> tuple[SizeView, ...]:
    """Rounds of 40 steps: 40 s with size 1, and with size 2 this many."""
    faster = CostModel(k1=0.0, k2=0.0, k3=0.0, k4=seconds_of_two / 40)
    return size_view(1), size_view(2, costs=faster, change_s=change_s)


def rising(sizes: tuple[SizeView, ...], **changes: Any) -> ParallelismView:
    return view(sizes=sizes, before=0.1, last=0.9, **changes)


def test_a_change_that_cannot_pay_within_the_horizon_is_not_made() -> None:
    assert PRICED.choose(rising(two(30.0, 99.0))).size == 2, "ten rounds save 100 s"
    assert PRICED.choose(rising(two(30.0, 100.0))).size == 1
    assert PRICED.choose(rising(two(30.0, 99.0), rounds=(9, 0))).size == 1
    assert PRICED.choose(rising(two(50.0, 0.0))).size == 1, "it would be slower"
    assert FREE.choose(rising(two(50.0, 1e9))).size == 2


def test_if_rounds_of_the_other_kind_keep_their_size_every_turn_is_a_change() -> None:
    shared = {"rounds": (10, 3), "other_size": 1}
    assert PRICED.choose(rising(two(30.0, 39.0), back_s=10.0, **shared)).size == 2, "39 and six times 10 are 99"
    assert PRICED.choose(rising(two(30.0, 41.0), back_s=10.0, **shared)).size == 1
    joined = {"rounds": (10, 3), "other_size": 2}
    assert PRICED.choose(rising(two(30.0, 159.0), back_s=10.0, **joined)).size == 2, "six turns are saved"
    assert PRICED.choose(rising(two(30.0, 160.0), back_s=10.0, **joined)).size == 1


def test_a_smaller_size_must_save_time_too() -> None:
    slower_two = two(50.0, 0.0)
    assert PRICED.choose(view(2, slower_two, last=0.0, before=0.0, num_quiet=4)).size == 1
    assert PRICED.choose(view(2, two(30.0, 0.0), last=0.0, before=0.0, num_quiet=4)).size == 2


# By forecast


CALM = SizeByForecast(has_price=False)
CAREFUL = SizeByForecast(has_price=True)


def known(sizes: tuple[SizeView, ...], size: int = 1, **changes: Any) -> ParallelismView:
    """A view after a round without a preemption."""
    return view(size, sizes, last=0.0, **changes)


def test_the_forecast_takes_the_fastest_size_whether_or_not_responses_are_preempted() -> None:
    assert CALM.choose(known(two(30.0, 0.0))).size == 2
    assert CALM.choose(known(two(50.0, 0.0))).size == 1
    assert CALM.choose(known(two(30.0, 0.0), size=2)).size == 2
    assert CALM.choose(known(two(50.0, 0.0), size=2)).size == 1
    four = size_view(4, costs=CostModel(k1=0.0, k2=0.0, k3=0.0, k4=0.5))
    assert CALM.choose(known((*two(30.0, 0.0), four))).size == 4, "it need not be the next one"


def test_a_forecast_of_almost_the_same_time_changes_nothing() -> None:
    assert CALM.choose(known(two(38.1, 0.0))).size == 1
    assert CALM.choose(known(two(37.9, 0.0))).size == 2


def test_a_forecast_waits_for_a_round_with_the_size_in_use() -> None:
    assert CALM.choose(view(1, two(30.0, 0.0))).size == 1


def test_a_change_by_forecast_must_pay_too() -> None:
    assert CAREFUL.choose(known(two(30.0, 99.0))).size == 2, "ten rounds save 100 s"
    assert CAREFUL.choose(known(two(30.0, 100.0))).size == 1
    turns = {"rounds": (10, 3), "other_size": 1, "back_s": 10.0}
    assert CAREFUL.choose(known(two(30.0, 41.0), **turns)).size == 1
    assert CALM.choose(known(two(30.0, 1e9))).size == 2


# How long a round takes


def work(active: list[float], num_responses: int = 8, width: float = 10.0, prompt_length: int = 0) -> RoundWork:
    return RoundWork(num_responses=num_responses, active=active, width=width, prompt_length=prompt_length)


def test_a_round_takes_a_step_for_each_token_of_its_longest_response() -> None:
    assert work([1.0, 0.5, 0.1, 0.0]).seconds(size_view(1)) == pytest.approx(30.0)


def test_the_costs_of_a_step_follow_responses_and_tokens_of_one_instance() -> None:
    costs = CostModel(k1=0.01, k2=0.5, k3=0.2, k4=0.1)
    one = size_view(1, num_instances=2, costs=costs)
    # Four responses of 5 + 3 tokens for ten steps, then two of 15 + 3.
    expected = 10 * (0.01 * 4 * 8 + 0.8 + 0.1) + 10 * (0.01 * 2 * 18 + 0.5 + 0.1)
    assert work([1.0, 0.5], prompt_length=3).seconds(one) == pytest.approx(expected)


def test_what_does_not_fit_is_computed_in_several_passes_and_prefilled_again() -> None:
    costs = CostModel(k1=0.0, k2=0.0, k3=0.0, k4=1.0, prefill_s=0.5)
    tight = size_view(1, num_instances=1, kv_tokens=60, costs=costs)
    # 8 responses of 5 tokens fit; of 15 tokens 4 fit: two passes, and 4 are prefilled again.
    assert work([1.0, 1.0]).seconds(tight) == pytest.approx(10 + 20 + 0.5 * 15 * 4)
    assert not work([1.0, 1.0]).fits(tight)
    assert work([1.0, 0.5]).fits(tight)


def test_more_responses_than_an_instance_generates_at_once_take_more_passes() -> None:
    assert work([1.0]).seconds(size_view(1, num_instances=1, max_running=4)) == pytest.approx(20.0)


def test_the_share_of_active_responses_counts_aborted_ones_as_far_as_they_came() -> None:
    history = LengthHistory()
    for length, is_cut in ((0, False), (NUM_BINS // 2, True), (NUM_BINS - 1, False), (NUM_BINS - 1, False)):
        history.add(length, NUM_BINS, is_cut=is_cut)
    active = history.active()
    assert (active[0], active[1], active[NUM_BINS // 2], active[NUM_BINS // 2 + 1]) == (1.0, 0.75, 0.75, 0.5)
    assert set(LengthHistory().active()) == {0.0}


# From the schedule


def test_policies_are_made_from_the_schedule() -> None:
    known = Parallelism(layouts=layouts_by_order(2, (1, 2), 1), rise=1.2, least_rise=0.1, quiet_rounds=7, horizon=None)
    schedule = Schedule(
        train_source="train", batch_size=1, group_size=1, max_steps=1, num_instances=2, parallelism=known
    )
    assert SizeByPreemptions.of(schedule) == SizeByPreemptions(
        rise=1.2, least_rise=0.1, quiet_rounds=7, has_price=False
    )
    priced = replace(schedule, parallelism=replace(known, horizon=3))
    assert SizeByPreemptions.of(priced).has_price
    assert SizeByForecast.of(priced) == CAREFUL
    assert SizeByForecast.of(schedule) == CALM


def test_fixed_never_changes() -> None:
    assert not FixedSize.changes
    assert FixedSize().choose(view(2, before=0.1, last=0.9)).size == 2


def test_a_size_that_was_never_measured_is_tried_without_a_price() -> None:
    """Its costs are those of another size, so by them it would never pay. When it works, they are measured."""
    rising = {"before": 0.1, "last": 0.9, "num_launched": 100, "rounds": (50, 0)}
    unknown = (size_view(1), size_view(2, is_measured=False, change_s=60.0))
    assert PRICED.choose(view(1, unknown, **rising)).size == 2
    assert PRICED.choose(view(1, tuple(replace(each, is_measured=True) for each in unknown), **rising)).size == 1
    quiet = {"before": 0.0, "last": 0.0, "num_quiet": 4, "rounds": (50, 0)}
    assert PRICED.choose(view(2, (size_view(1, is_measured=False, change_s=60.0), size_view(2)), **quiet)).size == 1
