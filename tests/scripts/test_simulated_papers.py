"""How `make bench-sim` puts a figure beside a paper's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def papers() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import simulated_papers
    finally:
        sys.path.pop(0)
    return simulated_papers


def test_a_mean_within_a_fifth_of_the_papers_is_near_and_another_has_a_remark(papers: ModuleType) -> None:
    near = papers._entry("x", (1.0, 1.5), [1.59, 1.99], "luck")
    assert (near["is_near"], papers.note(near)) == (True, "")
    assert near["simulated"] == {"mean": 1.79, "min": 1.59, "max": 1.99}
    far = papers._entry("x", (1.0, 1.5), [1.81], "luck")
    assert (far["is_near"], papers.note(far)) == (False, "more than 20% off; luck")


def test_one_seed_above_at_most_is_outside_however_little(papers: ModuleType) -> None:
    [row] = [row for row in papers.ROWS if "at most 5" in row.name]
    assert papers.entry(row, [4.0, 5.0])["is_near"]
    six = papers.entry(row, [4.0, 6.0])
    assert (six["is_near"], six["off"]) == (False, "outside the paper's bound")
    assert papers.lines([six])[1].endswith(f"outside the paper's bound; {row.remark}")


def test_a_figure_the_paper_does_not_give_is_neither_near_nor_far(papers: ModuleType) -> None:
    row = papers._entry("x", None, [0.5, 0.7], "censored")
    assert (row["is_near"], papers.shown_paper(row), papers.note(row)) == (None, "-", "censored")
    assert papers.shown_range(row["simulated"]) == "0.60 (0.50 to 0.70)"
