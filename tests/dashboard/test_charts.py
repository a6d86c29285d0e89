"""What is drawn is what was counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dashboard.test_report import crashed, finished, streamed
from tailrace.dashboard import charts
from tailrace.dashboard.figures import Chart, roomy
from tailrace.observe.account import Account
from tailrace.observe.time_use.timeline import Lane


@pytest.fixture(scope="module")
def account() -> Account:
    return Account.of(finished().entries)


def columns(chart: Chart, glyph: int) -> dict[str, Any]:
    data: dict[str, Any] = chart.figure.renderers[glyph].data_source.data
    return data


@pytest.mark.parametrize("make", [finished, crashed])
def test_the_idle_time_of_a_lane_is_drawn_to_scale_and_written_beside_it(make: object) -> None:
    entries = make().entries  # type: ignore[operator]
    account = Account.of(entries)
    lanes, window = account.timeline.lanes(), (account.began, account.now)
    chart = charts.timeline(lanes, title="", window=window)
    boxes = columns(chart, 0)
    is_idle = np.array(boxes["kind"]) == "idle"
    for place, lane in enumerate(lanes):
        mine = is_idle & (place < boxes["top"]) & (boxes["top"] < place + 1)
        assert (boxes["end"] - boxes["start"])[mine].sum() == pytest.approx(lane.idle_s, rel=0.02)
        assert chart.figure.yaxis[0].major_label_overrides[place + 0.5] == f"{lane.name}\nidle {lane.idle_s:,.1f} s"


def test_every_kind_of_span_has_its_colour_in_the_key() -> None:
    account = Account.of(crashed().entries)
    chart = charts.timeline(account.timeline.lanes(), title="", window=(account.began, account.now))
    assert {mark.words for mark in chart.key} == set(columns(chart, 0)["kind"])
    colours = chart.figure.renderers[0].glyph.fill_color.transform
    assert {mark.words: mark.colour for mark in chart.key} == dict(zip(colours.factors, colours.palette, strict=True))


def test_runs_in_one_window_share_their_time_axis() -> None:
    short, long = (Lane(name="trainer", start=0.0, end=end, spans=()) for end in (25.0, 100.0))
    drawings = [charts.timeline([lane], title="", window=(0.0, 100.0)) for lane in (short, long)]
    assert [(chart.figure.x_range.start, chart.figure.x_range.end) for chart in drawings] == [(0.0, 100.0)] * 2
    assert [columns(chart, 0)["end"].tolist() for chart in drawings] == [[25.0], [100.0]]


def test_every_step_has_its_reward(account: Account) -> None:
    drawn = columns(charts.rewards(account.steps), 1)
    assert drawn["step"].tolist() == [row["step"] for row in account.steps]
    assert drawn["mean"].tolist() == [row["reward/mean"] for row in account.steps]
    assert (drawn["high"] - drawn["low"]).tolist() == pytest.approx([2 * row["reward/std"] for row in account.steps])


def test_a_long_run_shows_the_trend_of_its_rewards(account: Account) -> None:
    values = [float(step % 7) for step in range(1, 1001)]
    steps = [{**account.steps[0], "step": step, "reward/mean": value} for step, value in enumerate(values, start=1)]
    chart = charts.rewards(steps)
    drawn = columns(chart, 1)
    assert [mark.words for mark in chart.key][2:] == ["mean of the last 40 steps"]
    assert drawn["step"].tolist() == list(range(2, 1001, 2))
    expected = [sum(values[max(step - 40, 0) : step]) / min(step, 40) for step in range(2, 1001, 2)]
    assert drawn["trend"].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("make", [finished, streamed])
def test_the_bars_of_a_step_add_up_to_its_seconds(make: object) -> None:
    account = Account.of(make().entries)  # type: ignore[operator]
    chart = charts.phases(account.steps, account.parts.steps)
    bars = columns(chart, 0)
    heights = sum(bars[mark.words] for mark in chart.key)
    assert heights.tolist() == pytest.approx([row["timing_s/step"] + row["timing_s/eval"] for row in account.steps])


def test_training_beside_rollout_is_drawn_lighter_and_not_on_top_of_it() -> None:
    account = Account.of(streamed().entries)
    chart = charts.phases(account.steps, account.parts.steps)
    hidden = [row["timing_s/update_hidden"] for row in account.steps]
    assert max(hidden) > 0
    assert columns(chart, 0)["generate and train"].tolist() == pytest.approx(hidden)


def test_bars_of_many_steps_are_means_that_add_up(account: Account) -> None:
    steps = [{**account.steps[0], "step": step} for step in range(1, 1001)]
    parts = [{"generate": 1.0 * (step % 3), "train": 2.0} for step in range(1000)]
    bars = columns(charts.phases(steps, parts), 0)
    assert bars["generate"] @ bars["width"] / 0.85 == pytest.approx(sum(each["generate"] for each in parts))
    assert bars["train"].tolist() == pytest.approx([2.0] * charts.MAX_BARS)


def test_every_evaluated_set_is_drawn_at_every_step_it_was_evaluated(account: Account) -> None:
    chart = charts.evaluations(account.evaluations)
    dots = columns(chart, 1)
    expected = [(name, step) for name in ("heldout/avg@2", "heldout/pass@2") for step in (0, 2, 4, 5)]
    assert list(zip(dots["set"], dots["step"], strict=True)) == expected
    assert [mark.shape for mark in chart.key] == ["line", "dashed"]
    assert columns(chart, 0)["dash"] == ["solid", "dashed"]


def test_a_cell_is_as_strong_as_the_share_of_its_length(account: Account) -> None:
    steps = account.fates.lengths
    (cells,) = columns(charts.lengths(steps, account.steps), 0)["image"]
    assert cells.shape == (charts.LENGTH_BINS, len(steps))
    longest = max(length for step in steps for length in step.generated)
    for column, step in enumerate(steps):
        filled = {min(length * charts.LENGTH_BINS // longest, charts.LENGTH_BINS - 1) for length in step.generated}
        assert set(np.flatnonzero(cells[:, column])) == filled


def test_a_run_of_one_step_can_be_drawn(account: Account) -> None:
    one = account.steps[:1]
    for chart in (
        charts.rewards(one),
        charts.phases(one, account.parts.steps[:1]),
        charts.lengths(account.fates.lengths[:1], one),
    ):
        assert (chart.figure.x_range.start, chart.figure.x_range.end) == (0.5, 1.5)


def test_a_line_of_one_value_has_room_around_it() -> None:
    assert roomy([0.25, 0.25]) == (-0.25, 0.75)
