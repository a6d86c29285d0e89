"""The page of a comparison: what was compared, where, and the figures of the journals."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import pytest

from core.world import World
from dashboard.test_report import SCHEDULE, Page
from tailrace.config.load import assemble
from tailrace.core.schedule import Leftovers
from tailrace.dashboard import machine
from tailrace.dashboard.compare import write_comparison
from tailrace.observe.schedules.comparison import Compared, costs, lessons

SEED = 4711


def compared(name: str, *, seed: int, trouble: float = 0.0, **changes: object) -> Compared:
    world = World(replace(SCHEDULE, **changes), random.Random(seed), num_prompts=50, trouble=trouble)
    world.run()
    return Compared.of(name, world.entries)


@pytest.fixture(scope="module")
def results() -> list[Compared]:
    tail = {"launch_prompts": 3, "launch_responses": 4, "leftovers": Leftovers.DEFER}
    return [compared("sync", seed=1), compared("tail-batching", seed=3, trouble=0.02, **tail)]


@pytest.fixture(scope="module")
def text(results: list[Compared], tmp_path_factory: pytest.TempPathFactory) -> str:
    given = {"seed": SEED, "model": {"path": "<tiny>"}, "eval": [{"name": "heldout", "path": "builtin:arith-heldout"}]}
    runs = {result.schedule: assemble(given, {"schedule.preset": result.schedule}) for result in results}
    path = tmp_path_factory.mktemp("page") / "compare.html"
    return write_comparison(results, runs, path, recipe="my-recipe").read_text()


def test_the_page_says_what_was_compared_and_where(text: str) -> None:
    page = Page(text)
    for fact in ("my-recipe", "<tiny>, float32", "builtin:arith-train", "5, each on 32 prompts with 8 responses"):
        assert fact in page.words
    assert f"seed {SEED}" in page.words
    assert machine.describe() in page.words
    assert f"python {machine.versions()['python']}" in page.words
    assert "heldout (builtin:arith-heldout)" in page.words
    assert page.loaded == []


def test_every_figure_of_the_tables_is_on_the_page(text: str, results: list[Compared]) -> None:
    words = Page(text).words
    for row in (*costs(results), *lessons(results)):
        assert " ".join(row) in words
    rewards = lessons(results)[1][1]
    assert rewards == f"{results[0].rewards[0]:.3f} -> {results[0].rewards[1]:.3f}"
    assert lessons(results)[0] == ["schedule", "reward", "heldout"]


def test_one_timeline_for_each_schedule_under_one_time_axis(text: str, results: list[Compared]) -> None:
    page = Page(text)
    assert {"chart-timeline-0", "chart-timeline-1"} <= page.ids
    assert "chart-timeline-2" not in page.ids
    [data] = re.findall(r'id="chart-data">(.*?)</script>', text)
    ranges = [_time_axis(item) for item in json.loads(data)]
    assert ranges == [(0.0, max(result.account.now for result in results))] * 2


def _time_axis(item: dict) -> tuple[float, float]:
    [root] = item["doc"]["roots"]
    found = root["attributes"]["x_range"]["attributes"]
    return float(found.get("start", 0.0)), float(found["end"])


def test_a_schedule_that_was_interrupted_is_said_to_be(text: str, results: list[Compared]) -> None:
    assert [bool(result.account.resumed_at) for result in results] == [False, True]
    assert "tail-batching was interrupted" in Page(text).words
    assert "sync was interrupted" not in Page(text).words
