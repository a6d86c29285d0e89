"""The rows of the stream trainer: the schedules they name exist, and a gain is the seconds before over those after."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tailrace.core.schedule import Stream
from tailrace.sim.named_schedule import schedule_of


@pytest.fixture(scope="module")
def streaming() -> ModuleType:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import simulated_streaming
    finally:
        sys.path.pop(0)
    return simulated_streaming


def test_every_row_names_a_schedule_that_streams_on_what_is_lent(streaming: ModuleType) -> None:
    names = {run.schedule for row in streaming.rows() for run in row.runs(0)}
    assert names == {*streaming.VARIANTS, streaming.WITHOUT, streaming.TAIL}
    scenario = streaming.load(streaming.SIZES["7B/8k"])
    chosen = scenario.schedule.model_copy(update={"variants": streaming.VARIANTS})
    for name in streaming.VARIANTS:
        made = schedule_of(scenario.model_copy(update={"schedule": chosen}), name)
        assert made.streams
        assert len(made.lending.places) == 8, "two instances stand on the devices of a replica"
        assert (made.stream is Stream.ONCE) == name.startswith("once")
        if name.startswith("once"):
            assert made.stream_groups == math.ceil(made.lending.at * made.batch_size)


def test_a_run_of_each_kind_comes_to_its_end_and_streaming_is_faster(streaming: ModuleType) -> None:
    seconds = {
        name: streaming.simulated(streaming.StreamRun(size="7B/8k", schedule=name, seed=0, steps=1)).seconds_per_step
        for name in (streaming.WITHOUT, streaming.ADAPTIVE)
    }
    assert seconds[streaming.ADAPTIVE] < seconds[streaming.WITHOUT]
