"""Runs whose instances change their parallel size, with an engine that makes tokens up at the speed of a cost model.

Short rounds go from size 2 to size 1 after four rounds without a preemption. The long round after them still has size
2, so the instance of size 2 comes back, and then those of size 1. `tests/backends/test_vllm_parallel_sizes.py` does it
with ranks that hold a model.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from end_to_end import launch
from end_to_end.test_lost_instances import worker
from end_to_end.wounds import entries_of
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry

pytestmark = [pytest.mark.slow, pytest.mark.long]
GIVEN: dict[str, Any] = {
    "rollout__engine": "timed",
    "rollout__costs__k4": 0.001,
    "rollout__tensor_parallel_size": 2,
    "rollout__parallel_sizes": "[1, 2]",
    "schedule__preset": "tail-batching",
    "schedule__parallelism": "preemptions",
    "schedule__parallel_horizon": "any",
    "schedule__max_steps": 11,
    "eval": "[]",
    "eval_interval": "null",
}
SIZES = [2, 2, 2, 2, 2, 1, 1, 1, 1, 2, 1]


def commands(entries: list[Entry], kind: type[do.Command]) -> Iterator[Any]:
    return (command for entry in entries for command in entry.commands if isinstance(command, kind))


def sizes(entries: list[Entry]) -> list[int]:
    """The size of each round. One that was opened again after a resume counts once."""
    return list({each.round: each.parallel_size for each in commands(entries, do.OpenRound)}.values())


@pytest.fixture(scope="module")
def parked(tmp_path_factory: pytest.TempPathFactory) -> launch.Run:
    return launch.train_well(tmp_path_factory.mktemp("sizes") / "run", **GIVEN)


def test_instances_of_another_size_wait_with_released_memory_and_come_back_with_a_pull(parked: launch.Run) -> None:
    assert "instances of another size wait with released memory" in parked.said
    entries = entries_of(parked.output)
    assert sizes(entries) == SIZES
    assert [(each.instance, each.size) for each in commands(entries, do.StartInstance)] == [(0, 2), (1, 1), (2, 1)]
    assert not list(commands(entries, do.StopInstance))
    released = [each.instance for each in commands(entries, do.ReleaseMemory)]
    assert released[0] == 0
    assert sorted(released[1:3]) == [1, 2]
    assert released[3:] == [0]
    published, waiting, woken = 0, set(), set()
    for entry in entries:
        match entry.event:
            case ev.WeightsPublished(version=published):
                pass
            case ev.MemoryReleased(instance=instance):
                waiting.add(instance)
            case ev.WeightsPulled(instance=instance, version=version) if instance in waiting:
                waiting.remove(instance)
                woken.add(instance)
                assert version == published, "who comes back has the newest version"
    assert woken == {0, 1, 2}
    assert not any(isinstance(each.event, ev.InstanceLost) for each in entries)


def test_where_nobody_waits_instances_end_and_start_again(tmp_path: Path) -> None:
    run = launch.train_well(tmp_path / "run", **GIVEN, rollout__park="never")
    assert "instances of another size end, because rollout.park is 'never'" in run.said
    entries = entries_of(run.output)
    assert sizes(entries) == SIZES
    starts = [(each.instance, each.size) for each in commands(entries, do.StartInstance)]
    assert starts == [(0, 2), (1, 1), (2, 1), (0, 2), (1, 1), (2, 1)]
    assert not list(commands(entries, do.ReleaseMemory))


@pytest.mark.parametrize("park", ["auto", "never"])
def test_a_run_that_loses_a_new_instance_and_its_controller_during_a_change_ends_well(
    park: str, tmp_path: Path
) -> None:
    asked, output = GIVEN | {"rollout__park": park}, tmp_path / "run"
    run = launch.start(output, **asked)

    def is_changing() -> bool:
        return any(each.size == 1 for each in commands(entries_of(output), do.StartInstance))

    launch.wait_until(run, is_changing)
    launch.wait_until(run, lambda: kill(run, "rollout-1"))
    launch.wait_until(run, lambda: lost(output) == {1})
    assert (
        launch.kill_when(run, lambda: sizes(entries_of(output))[-1] == 2 and len(sizes(entries_of(output))) > 6) == []
    )
    launch.train_well(output, **asked)
    entries = entries_of(output)
    assert sizes(entries) == SIZES
    assert any(isinstance(each.event, ev.RunResumed) for each in entries)
    assert [each.event.version for each in entries if isinstance(each.event, ev.StepTrained)][-1] == 11


def kill(run: subprocess.Popen[bytes], name: str) -> bool:
    """Kill a worker; False if it is not there yet."""
    try:
        worker(run, name).kill()
    except (StopIteration, FileNotFoundError, psutil.NoSuchProcess):
        return False
    return True


def lost(output: Path) -> set[int]:
    return {each.event.instance for each in entries_of(output) if isinstance(each.event, ev.InstanceLost)}
