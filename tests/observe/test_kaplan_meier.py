"""The Kaplan-Meier estimate of lengths, by numbers worked out by hand."""

from __future__ import annotations

from statistics import fmean

import pytest

from tailrace.observe.metrics.kaplan_meier import kaplan_meier
from tailrace.observe.metrics.response_metrics import percentile


def test_without_stopped_responses_the_estimate_is_the_sample_itself() -> None:
    lengths = [3, 5, 5, 8, 13, 21]
    found = kaplan_meier({3: 1, 5: 2, 8: 1, 13: 1, 21: 1}, {})
    assert found.mean == pytest.approx(fmean(lengths))
    assert [found.percentile(share) for share in (0.0, 0.5, 0.95)] == [percentile(lengths, s) for s in (0.0, 0.5, 0.95)]
    assert found.unseen_share == pytest.approx(0.0)


def test_a_stopped_response_counts_as_long_as_it_was_observed() -> None:
    """Ended at 2, 4 and 6, stopped at 3 and 4: of 5 one ends, of 3 one ends, of 1 one ends."""
    found = kaplan_meier({2: 1, 4: 1, 6: 1}, {3: 1, 4: 1})
    assert found.longer == pytest.approx((4 / 5, 4 / 5 * 2 / 3, 0.0))
    assert found.mean == pytest.approx(2 * 1.0 + 2 * 4 / 5 + 2 * 8 / 15)
    assert (found.percentile(0.25), found.percentile(0.5), found.longest) == (4, 6, 6)
    assert (found.num_ended, found.num_censored) == (3, 2)


def test_a_response_stopped_at_the_length_where_another_ended_was_longer() -> None:
    assert kaplan_meier({5: 1}, {5: 1}).longer == (0.5,)


def test_if_the_longest_was_stopped_the_mean_is_a_lower_bound_up_to_there() -> None:
    found = kaplan_meier({10: 1}, {30: 1})
    assert found.unseen_share == 0.5
    assert found.mean == pytest.approx(10 * 1.0 + 20 * 0.5)
    assert (found.percentile(0.4), found.percentile(0.95)) == (10, 30)


def test_if_no_response_ended_nothing_but_a_lower_bound_is_known() -> None:
    found = kaplan_meier({}, {7: 2})
    assert (found.mean, found.unseen_share, found.percentile(0.5)) == (7.0, 1.0, 7)


def test_no_response_at_all_cannot_be_estimated_from() -> None:
    with pytest.raises(ValueError, match="at least one response"):
        kaplan_meier({}, {})
