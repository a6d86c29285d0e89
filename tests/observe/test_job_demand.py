"""The demand of a job: from a journal, as a file, and what is said about files that are none."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_journal
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.core.schedule import Schedule
from tailrace.observe.demand import job_demand
from tailrace.observe.demand.job_demand import JobDemand
from tailrace.observe.demand.run_demand import demand_of_run
from tailrace.observe.time_use.phases import StepTime


def run_of(folder: Path, steps: int, **changes: int) -> Path:
    schedule = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=steps, num_instances=2, **changes)
    world = World(schedule, random.Random(0))
    world.run()
    return write_journal(folder, world.entries)


def test_a_run_becomes_a_trace_whose_steps_last_as_long_as_its_own(tmp_path: Path) -> None:
    demand = demand_of_run(run_of(tmp_path / "mine", 8))
    assert (demand.name, demand.train_devices, demand.rollout_devices) == ("mine", 1, 2)
    assert len(demand.run) == 8
    # A step of the trace lasts from one training to the next, so the first rollout and the last step are not in it.
    inner = demand.run_s - demand.run[0].rollout_s - demand.run[-1].train_s - demand.run[-1].sync_s
    assert demand.trace.step_s == pytest.approx(inner / 7, rel=0.1)
    assert 0 < demand.trace.duty < 1


def test_training_cannot_be_late_if_rollout_waits_for_it(tmp_path: Path) -> None:
    waiting = demand_of_run(run_of(tmp_path / "sync", 8))
    assert all(segment.slack_s == 0 for segment in waiting.trace.segments)


def test_training_can_be_late_for_as_long_as_it_waits_for_a_rollout_that_goes_on_beside_it(tmp_path: Path) -> None:
    demand = demand_of_run(run_of(tmp_path / "overlapping", 12, max_staleness=1, rounds_ahead=1))
    free_s = sorted(step.rollout_s for step in demand.run[1:])
    slacks = {segment.slack_s for segment in demand.trace.segments}
    assert len(slacks) == 1
    assert 0 < slacks.pop() <= free_s[-1] + 1e-9


def test_one_step_alone_shows_no_period(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shows no period: it has 1 optimizer step, and 2 are needed"):
        demand_of_run(run_of(tmp_path / "short", 1))


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    trace = DemandTrace(period_s=10.0, segments=(DemandSegment(offset_s=6.0, duration_s=3.0, slack_s=1.0),), steps=2)
    step = StepTime(step=1, rollout_s=6.0, train_s=2.0, sync_s=1.0)
    demand = JobDemand(name="a", trace=trace, train_devices=8, rollout_devices=4, run=(step,))
    job_demand.write(demand, tmp_path / "a.json")
    assert job_demand.read(tmp_path / "a.json") == demand


def test_a_part_without_time_is_written_as_a_very_short_one() -> None:
    trace = DemandTrace(period_s=10.0, segments=(DemandSegment(offset_s=0.0, duration_s=3.0),))
    demand = JobDemand(name="a", trace=trace, run=(StepTime(step=1, rollout_s=6.0, train_s=2.0, sync_s=0.0),))
    assert demand.to_dict()["steps"] == [[6.0, 2.0, job_demand.SHORTEST_S]]


GOOD = {"format": 1, "trace": {"period_s": 10.0, "segments": [{"offset_s": 6.0, "duration_s": 3.0}]}}


def test_a_file_by_hand_needs_only_the_trace(tmp_path: Path) -> None:
    (tmp_path / "hand.json").write_text(json.dumps(GOOD))
    found = job_demand.read(tmp_path / "hand.json")
    assert (found.name, found.train_devices, found.rollout_devices, found.run) == ("hand", 1, 0, ())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is not JSON"),
        ("[]", "`tailrace cluster trace RUN --json FILE` writes one"),
        (json.dumps(GOOD | {"format": 2}), "its format is 2"),
        (json.dumps(GOOD | {"trace": {"segments": []}}), "'period_s' is missing"),
        (json.dumps(GOOD | {"trace": GOOD["trace"] | {"period_s": 5.0}}), "after the period"),
        (json.dumps(GOOD | {"trace": GOOD["trace"] | {"segments": [1]}}), "not of the expected kind"),
        (json.dumps(GOOD | {"trace": GOOD["trace"] | {"segments": [{"offset_s": 1}]}}), "'duration_s' is missing"),
        (
            json.dumps(GOOD | {"trace": GOOD["trace"] | {"segments": [{"ofset_s": 1, "duration_s": 3.0}]}}),
            "unknown key trace.segments.ofset_s; did you mean trace.segments.offset_s?",
        ),
        (json.dumps(GOOD | {"trace": GOOD["trace"] | {"perod_s": 5}}), "did you mean trace.period_s?"),
        (json.dumps(GOOD | {"trace": GOOD["trace"] | {"period_s": "5"}}), "trace.period_s must be a number, got '5'"),
        (json.dumps(GOOD | {"train_device": 8}), "unknown key train_device; did you mean train_devices?"),
        (json.dumps(GOOD | {"zzz": 8}), "unknown key zzz; known are format, job"),
        (json.dumps(GOOD | {"train_devices": 0}), "train_devices must be a whole number from 1 on"),
        (json.dumps(GOOD | {"steps": [[1.0, 2.0]]}), "steps: expected three numbers"),
    ],
)
def test_a_file_that_is_no_trace_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.json is no trace: ") as caught:
        job_demand.read(tmp_path / "bad.json")
    assert sentence in str(caught.value)
