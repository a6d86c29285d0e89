"""What is drawn is what was counted."""

from __future__ import annotations

import re

import pytest

from dashboard.test_report import crashed, finished
from tailrace.dashboard import charts
from tailrace.dashboard.plane import Chart
from tailrace.observe.account import Account
from tailrace.observe.timeline import Lane


@pytest.fixture(scope="module")
def account() -> Account:
    return Account.of(finished().entries)


def drawn_seconds(chart: Chart, colour: str, seconds_wide: float, lane: int, num_lanes: int) -> float:
    """The width of all boxes of a colour in a lane."""
    (path,) = re.findall(rf'fill="{colour}" d="([^"]*)"', chart.shapes)
    boxes = [tuple(map(float, box)) for box in re.findall(r"M(\S+) (\S+?)H(\S+?)V(\S+?)H", path)]
    height = 100 / num_lanes
    widths = [right - left for left, top, right, _ in boxes if lane * height <= top < (lane + 1) * height]
    return sum(widths) * seconds_wide / 1000


@pytest.mark.parametrize("make", [finished, crashed])
def test_the_idle_time_of_a_lane_is_drawn_to_scale_and_written_beside_it(make: object) -> None:
    entries = make().entries  # type: ignore[operator]
    account = Account.of(entries)
    lanes, window = account.timeline.lanes(), (account.began, account.now)
    chart = charts.timeline(lanes, title="", window=window)
    for place, lane in enumerate(lanes):
        width = drawn_seconds(chart, charts.SPAN_COLOURS["idle"], window[1] - window[0], place, len(lanes))
        assert width == pytest.approx(lane.idle_s, rel=0.02)
        assert chart.y_labels[place].words == f"{lane.name}\nidle {lane.idle_s:,.1f} s"


def test_runs_in_one_window_share_their_time_axis() -> None:
    short, long = (Lane(name="trainer", start=0.0, end=end, spans=()) for end in (25.0, 100.0))
    of_short, of_long = (charts.timeline([lane], title="", window=(0.0, 100.0)) for lane in (short, long))
    assert of_short.x_labels == of_long.x_labels
    assert 'd="M0 18H250V82H0Z"' in of_short.shapes
    assert 'd="M0 18H1000V82H0Z"' in of_long.shapes


def test_every_step_has_its_reward_under_the_pointer(account: Account) -> None:
    chart = charts.rewards(account.steps)
    expected = [f"step {row['step']:g}\nmean {row['reward/mean']:.3f}" for row in account.steps]
    assert [words for *_, words in chart.tips] == expected


def test_the_bars_of_a_step_add_up_to_its_seconds(account: Account) -> None:
    chart = charts.phases(account.steps)
    for row, (*_, words) in zip(account.steps, chart.tips, strict=True):
        parts = [float(part) for part in re.findall(r" (\d+\.\d+) s", words)]
        assert sum(parts) == pytest.approx(row["timing_s/step"], abs=0.005 * len(parts))


def test_sets_evaluated_at_one_step_are_named_together(account: Account) -> None:
    chart = charts.evaluations(account.evaluations)
    assert [words.split("\n")[0] for *_, words in chart.tips] == ["step 0", "step 2", "step 4", "step 5"]
    assert all("heldout/avg@2" in words and "heldout/pass@2" in words for *_, words in chart.tips)


def test_a_run_of_one_step_can_be_drawn(account: Account) -> None:
    one = account.steps[:1]
    for chart in (charts.rewards(one), charts.phases(one), charts.lengths(account.fates.lengths[:1], one)):
        assert [label.words for label in chart.x_labels] == ["1"]
