"""A real run that begins with costs which are far off: it notices, measures, and steers by what it found."""

from __future__ import annotations

import json

import pytest

from end_to_end import launch
from end_to_end.launch import Run
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry, replay_all
from tailrace.observe.journal.journal_file import read
from tailrace.policies.strategies import policies_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def misled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Five seconds a step, it was told. Long enough for several windows of samples: those of the first may be too
    uneven on a busy machine."""
    return launch.train_well(
        tmp_path_factory.mktemp("misled") / "run",
        schedule__preset="staleflow",
        schedule__max_steps=100,
        rollout__num_instances=2,
        rollout__max_response_length=192,
        rollout__progress_interval_s=0.01,
        rollout__costs__k4=5.0,
        eval="[]",
        eval_interval="null",
        save_interval="null",
    )


@pytest.fixture(scope="module")
def entries(misled: Run) -> list[Entry]:
    return [entry for _, entry in read(misled.output / "journal.jsonl")]


def test_costs_that_are_off_are_measured_and_then_closer(misled: Run, entries: list[Entry]) -> None:
    measured = [entry.event for entry in entries if isinstance(entry.event, ev.CostsMeasured)]
    assert measured[0].error > 0.9
    assert measured[0].fitted_error < measured[0].error
    rows = [json.loads(line) for line in (misled.output / "metrics.jsonl").read_text().splitlines()]
    # Not in every row: the load of the machine may change.
    errors = [row["perf/prediction_error"] for row in rows if "perf/prediction_error" in row]
    assert min(errors) < measured[0].error / 2
    assert "costs of a decode step measured" in misled.said


def test_the_journal_tells_every_choice_that_followed_from_them(entries: list[Entry]) -> None:
    assert replay_all(entries, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)
