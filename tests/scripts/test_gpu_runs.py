"""Means over the steps of a run, and the means that the results of ``gpu_steps.py`` keep."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
WARM_UP = 2


@pytest.fixture(scope="module")
def gpu_runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_runs", BENCHMARKS / "gpu_runs.py")
    module = sys.modules["gpu_runs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_mean_is_over_the_steps_that_have_the_metric_and_an_absent_one_is_left_out(gpu_runs: ModuleType) -> None:
    steps = [{"length": 1.0, "mismatch": 0.04}, {"length": 3.0}]
    assert gpu_runs.means(steps, ("length", "mismatch", "memory")) == {"length": 2.0, "mismatch": 0.04}


@pytest.mark.parametrize(
    ("result", "name"),
    [
        *(("gpu_steps_h200", name) for name in ("sync", "one-step", "active-partial", "staleflow", "tail-batching")),
        *(("gpu_steps_h200_engines", name) for name in ("sync", "sync:::vllm", "staleflow:4", "one-step::never")),
        ("gpu_steps_h200_sync", "sync"),
        ("gpu_steps_h200_compiled", "sync"),
    ],
)
def test_kept_means_of_training_are_those_of_the_kept_journal(result: str, name: str, gpu_runs: ModuleType) -> None:
    with gzip.open(RESULTS / "journals" / result / f"{name.replace(':', '-')}.jsonl.gz", "rt") as lines:
        events = [json.loads(line)["event"] for line in lines]
    steps = [dict(event["metrics"]) for event in events if event["type"] == "StepTrained"]
    kept = json.loads((RESULTS / f"{result}.json").read_text())["runs"][name]["mean_of"]
    trained = ("mismatch/logprob_abs_diff", "perf/max_memory_allocated_gb")
    assert gpu_runs.means(steps[WARM_UP:], trained) == {metric: kept[metric] for metric in trained if metric in kept}
