"""Every schedule for real, on two instances: bound 0 equals `sync`, and `kill -9` loses nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from end_to_end import launch
from end_to_end.launch import Run
from tailrace.core import commands as do
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import CostsMeasured, RolloutReported, RunResumed, RunStarted
from tailrace.core.ids import ResponseId
from tailrace.core.journal import Entry, replay_all
from tailrace.observe.journal.journal_file import read
from tailrace.observe.schedules.comparison import Compared
from tailrace.policies.strategies import policies_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

EXACT: dict[str, Any] = {
    "rollout__num_instances": 2,
    "rollout__deterministic": True,
    "schedule__max_steps": 3,
    "eval": "[]",
    "eval_interval": "null",
    "save_interval": "null",
}
LONG_TAILED: dict[str, Any] = {
    "rollout__num_instances": 2,
    "rollout__max_response_length": 192,
    "schedule__max_steps": 6,
    "eval": "[]",
    "eval_interval": "null",
    "save_interval": 2,
}


@pytest.fixture(scope="module")
def sync(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return launch.train_well(tmp_path_factory.mktemp("sync") / "run", **EXACT)


@pytest.mark.parametrize("leftovers", ["keep", "resume", "defer"])
def test_bound_0_without_over_provisioning_equals_the_synchronous_run(
    sync: Run, tmp_path: Path, leftovers: str
) -> None:
    run = launch.train_well(tmp_path / "run", **EXACT, schedule__leftovers=leftovers)
    assert launch.final_weights(run.output) == launch.final_weights(sync.output)
    rows = launch.untimed_metrics(run.output)
    # Only schedules that defer have long rounds to tell of.
    assert {row.pop("groups/is_long_round", 0) for row in rows} == {0}
    assert rows == launch.untimed_metrics(sync.output)


def test_the_strategies_at_bound_0_equal_the_synchronous_run(sync: Run, tmp_path: Path) -> None:
    run = launch.train_well(tmp_path / "run", **EXACT, schedule__preset="staleflow", schedule__max_staleness=0)
    first, *others = [entry.event for _, entry in read(run.output / "journal.jsonl")]
    assert isinstance(first, RunStarted)
    assert not any(isinstance(event, CostsMeasured) for event in others), "no clock may enter a choice"
    chosen = first.schedule.coordination
    assert {chosen.routing, chosen.synchronization, chosen.migration} == {"throughput"}
    assert launch.final_weights(run.output) == launch.final_weights(sync.output)
    assert launch.untimed_metrics(run.output) == launch.untimed_metrics(sync.output)


def half_done(entries: list[Entry]) -> set[ResponseId]:
    """Responses of which tokens were reported, but no end."""
    reports = [entry.event for entry in entries if isinstance(entry.event, RolloutReported)]
    begun = {part.response for report in reports for part in report.progressed if part.length}
    return begun - {part.response for report in reports for part in report.finished}


@pytest.mark.parametrize(
    "preset", ["stage-overlap", "tail-batching", "rollpacker", "active-partial", "one-step", "async-cap", "staleflow"]
)
def test_a_schedule_that_is_killed_loses_no_prompt_and_trains_none_twice(tmp_path: Path, preset: str) -> None:
    output, given = tmp_path / "run", LONG_TAILED | {"schedule__preset": preset}
    process = launch.start(output, **given)
    launch.kill_when(process, lambda: (output / "checkpoints" / "step_2").exists())
    launch.train_well(output, **given)
    entries = [entry for _, entry in read(output / "journal.jsonl")]
    assert replay_all(entries, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)
    pieces = [c for entry in entries for c in entry.commands if isinstance(c, do.Accumulate)]
    steps = {(c.version, c.piece): c for c in pieces}
    assert sorted({version for version, _ in steps}) == list(range(6))
    trained = Counter(group for step in steps.values() for group in {r.group for r in step.responses})
    assert set(trained.values()) == {1}
    resumed = next(i for i, entry in enumerate(entries) if isinstance(entry.event, RunResumed))
    given_out = [c for entry in entries[resumed:] for c in entry.commands if isinstance(c, do.Submit)]
    # The leftovers of tail batching begin again by definition, and the kill may come when nothing is half done.
    if preset not in ("tail-batching", "rollpacker") and half_done(entries[:resumed]):
        assert any(d.start > 0 for submit in given_out[:4] for d in submit.dispatches), "no partial response was kept"
    found = Compared.of(preset, entries)
    assert found.prompts["adds_up"]
    bound = {"one-step": 1, "stage-overlap": 0, "tail-batching": 0, "rollpacker": 0, "staleflow": 1}.get(preset)
    assert found.figures.staleness_max <= (6 if bound is None else bound)
    if bound is not None:
        assert found.figures.staleness_violations == 0
