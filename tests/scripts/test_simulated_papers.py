"""How `make bench-sim` judges a figure beside a paper's."""

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


def test_a_figure_within_a_fifth_of_the_papers_is_near_and_another_says_what_it_rests_on(papers: ModuleType) -> None:
    near = papers._entry("x", (1.0, 1.5), 1.79, "luck")
    assert (near["is_near"], "rests_on" in near) == (True, False)
    far = papers._entry("x", (1.0, 1.5), 1.81, "luck")
    assert (far["is_near"], far["off"], far["rests_on"]) == (False, "more than 20% off", "luck")


def test_above_at_most_is_outside_however_little(papers: ModuleType) -> None:
    [row] = [row for row in papers.ROWS if "at most 5" in row.name]
    assert papers._row(row, 5.0)["is_near"]
    six = papers._row(row, 6.0)
    assert (six["is_near"], six["off"]) == (False, "outside the paper's bound")
    assert papers.lines([six])[1].endswith(f"outside the paper's bound; rests on: {row.rests_on}")
