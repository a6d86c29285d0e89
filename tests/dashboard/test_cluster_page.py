"""The pages of a simulated cluster and of a plan: all figures, small however long, and no complaint of a browser."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dashboard.test_browser import CHROMIUM, browse
from dashboard.test_report import Page
from tailrace.dashboard import cluster_charts as charts
from tailrace.dashboard.cluster_charts import Box
from tailrace.dashboard.cluster_page import figure_rows, write_cluster_page

PERIOD_S, BUSY_S, SWITCH_S = 289.0, 57.5, 8.0


def result(policy: str, *, num_groups: int = 2, sharing: int = 1, steps: int = 4) -> dict[str, Any]:
    """Jobs in turn on every group, and one that never started."""
    spans, jobs = [], []
    for group in range(num_groups):
        for place in range(sharing):
            name = f"job-{group * sharing + place}"
            for step in range(steps):
                start = step * PERIOD_S + place * 70.0
                parts = [("load", start, start + SWITCH_S), ("train", start + SWITCH_S, start + SWITCH_S + BUSY_S)]
                spans += [dict(zip(("kind", "start", "end"), part, strict=True), group=f"g{group}", job=name)
                          for part in parts]  # fmt: skip
            jobs.append(
                {"id": name, "model": "7B", "submitted": 0.0, "started": 60.0 * place, "ended": steps * PERIOD_S,
                 "steps": steps, "wait_s": 60.0 * place, "alone_s": steps * PERIOD_S, "slowdown": 1.0 + 0.02 * sharing,
                 "device_hours": 1.0}
            )  # fmt: skip
    refused = {"id": "never", "started": None, "ended": None, "wait_s": None, "slowdown": None, "steps": 0}
    figures = {
        "makespan_s": 8000.0 / sharing,
        "mean_slowdown": 1.0 + 0.02 * sharing,
        "switches_per_step": 1.0,
        "bytes_moved": 2.5e12,
        "device_hours_per_step": 0.96 * (4 + 8 / sharing) / 12,
        "alone_device_hours_per_step": 0.96,
        "saving": 1 - (4 + 8 / sharing) / 12,
        "utilisation": 0.2,
    }
    groups = [{"id": f"g{group}", "devices": 8} for group in range(num_groups)]
    return {"policy": policy, "groups": groups, "spans": spans, "jobs": [*jobs, jobs[0] | refused], "figures": figures}


def test_every_policy_is_measured_by_the_first() -> None:
    rows = figure_rows([result("isolated"), result("spread", sharing=2)])
    assert rows[1][:3] == ["isolated", "2:13 h", "100.0%"]
    assert rows[2][:4] == ["spread", "1:07 h", "50.0%", "1.040x"]
    assert [row[rows[0].index("saved")] for row in rows[1:]] == ["0.0%", "33.3%"]
    assert rows[2][rows[0].index("moved")] == "2.5 TB"


def test_what_is_saved_is_measured_by_jobs_that_are_alone_whatever_the_first_policy_is() -> None:
    rows = figure_rows([result("spread", sharing=2)])
    assert rows[1][rows[0].index("saved")] == "33.3%"
    rounded = result("isolated")
    rounded["figures"]["saving"] = -1e-17
    assert figure_rows([rounded])[1][rows[0].index("saved")] == "0.0%"


def test_a_figure_that_is_not_known_is_a_dash() -> None:
    unknown = copy.deepcopy(result("isolated"))
    unknown["figures"] = dict.fromkeys(unknown["figures"])
    assert figure_rows([unknown])[1][1] == "\N{EN DASH}"


def test_the_page_names_all_figures_and_loads_nothing(tmp_path: Path) -> None:
    results = [result("isolated"), result("spread", sharing=2)]
    page = Page(write_cluster_page(results, tmp_path / "cluster.html", title="Backlog").read_text())
    assert page.loaded == []
    for row in figure_rows(results):
        assert " ".join(row) in page.words
    assert {"chart-timeline-0", "chart-timeline-1", "chart-hours", "chart-waits", "chart-slowdowns"} <= page.ids
    assert "chart-beginning-0" not in page.ids
    assert "Backlog" in page.words


def test_a_long_simulation_gives_a_small_page_with_its_beginning_in_detail(tmp_path: Path) -> None:
    long = result("spread", num_groups=30, sharing=3, steps=500)
    assert len(long["spans"]) == 90_000
    path = write_cluster_page([long], tmp_path / "cluster.html")
    assert path.stat().st_size < 5e6
    page = Page(path.read_text())
    assert "chart-beginning-0" in page.ids
    assert "The first 24 of 30 node groups are drawn." in page.words


def test_no_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no result"):
        write_cluster_page([], tmp_path / "cluster.html")


def box(start: float, end: float, *, job: str = "a", group: str = "g") -> Box:
    return Box(group=group, job=job, kind="train", start=start, end=end)


def test_long_boxes_stay_as_they_are() -> None:
    boxes = [box(0, 10), box(10, 20, job="b"), box(20, 30)]
    assert charts.thin(boxes, shortest=5) == boxes


def test_short_boxes_become_one_for_each_job_that_says_how_much_of_it_is_in_use() -> None:
    [one, other, alone] = charts.thin([box(0, 1), box(2, 3, job="b"), box(4, 5), box(100, 101)], shortest=8)
    assert (one.job, one.start, one.count, other.job, other.end, other.count) == ("a", 0, 2, "b", 5, 1)
    assert one.end == other.start == pytest.approx(5 * 2 / 3)
    assert [one.share, other.share] == pytest.approx([3 / 5, 3 / 5])
    assert alone == box(100, 101)


def test_boxes_of_different_groups_are_never_drawn_as_one() -> None:
    boxes = [box(0, 1), box(1, 2, group="h")]
    assert charts.thin(boxes, shortest=50) == boxes


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.parametrize("is_dark", [False, True])
def test_a_browser_draws_every_chart_without_a_complaint(tmp_path: Path, is_dark: bool) -> None:
    path = write_cluster_page([result("isolated"), result("spread", sharing=2)], tmp_path / "cluster.html")
    text, console = browse(path, tmp_path / "profile", is_dark=is_dark)
    assert text.count('class="bk-Figure') == 5
    assert "data-complete-ms" in text
    assert console == []
