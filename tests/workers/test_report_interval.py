"""How often progress is reported: seldom enough for the journal, often enough for a lost instance."""

from __future__ import annotations

import pytest

from tailrace.observe.display.display import WAIT_SHOWN_AFTER_S
from tailrace.workers.report_interval import (
    LONGEST_GATHER_S,
    LONGEST_INTERVAL_S,
    PROGRESS_PER_S,
    REPORTS_PER_S,
    gather_s,
    progress_interval_s,
)


@pytest.mark.parametrize(
    ("num_live", "num_instances", "expected_s"),
    [(0, 1, 0.25), (128, 1, 0.25), (256, 1, 0.5), (256, 8, 4.0), (2048, 1, 4.0), (100_000, 1, 5.0)],
)
def test_the_interval_grows_with_what_is_in_flight_up_to_a_limit(
    num_live: int, num_instances: int, expected_s: float
) -> None:
    assert progress_interval_s(num_live, shortest_s=0.25, num_instances=num_instances) == expected_s


def test_an_interval_that_was_asked_for_is_never_shortened() -> None:
    assert progress_interval_s(4, shortest_s=1000.0, num_instances=1) == 1000.0
    assert progress_interval_s(100_000, shortest_s=20.0, num_instances=1) == 20.0


@pytest.mark.parametrize("num_instances", [1, 8, 64])
def test_all_instances_together_report_no_more_than_their_share_below_the_limit(num_instances: int) -> None:
    in_flight = 2048
    interval_s = progress_interval_s(in_flight // num_instances, shortest_s=0.25, num_instances=num_instances)
    assert in_flight / interval_s <= PROGRESS_PER_S


def test_a_report_that_is_on_time_is_never_shown_as_a_wait() -> None:
    assert 2 * LONGEST_INTERVAL_S <= WAIT_SHOWN_AFTER_S


@pytest.mark.parametrize("num_instances", [8, 64, 80])
@pytest.mark.parametrize("num_live", [1, 4, 32])
def test_instances_with_few_responses_do_not_report_more_often_than_all_of_them_may(
    num_live: int, num_instances: int
) -> None:
    interval_s = progress_interval_s(num_live, shortest_s=0.01, num_instances=num_instances)
    assert num_instances / interval_s <= REPORTS_PER_S


def test_a_few_instances_report_as_often_as_asked() -> None:
    assert progress_interval_s(1, shortest_s=0.25, num_instances=4) == 0.25
    assert progress_interval_s(1, shortest_s=0.25, num_instances=64) == 4.0


def test_messages_are_gathered_longer_the_more_instances_there_are_but_not_for_long() -> None:
    assert gather_s(1) < 0.002
    assert gather_s(8) < gather_s(64) == LONGEST_GATHER_S == gather_s(1000)
