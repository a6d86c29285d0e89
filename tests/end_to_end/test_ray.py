"""Whole runs on a real Ray cluster of this machine: equal to local ones, whichever of their processes is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

from end_to_end import launch, ray_cluster, wounds
from end_to_end.test_stopped_workers import assert_wounded_and_well
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.observe.journal.journal_file import read
from tailrace.observe.prompts.conservation import conservation
from tailrace.trainer.checkpoints.export import export, find_checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]
GIVEN: dict[str, Any] = {
    "rollout__deterministic": True,
    "rollout__num_instances": 2,
    "schedule__max_steps": 6,
    "save_interval": 2,
    "eval": "[]",
    "eval_interval": "null",
}
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, Any]]:
    """Settings of a run on a cluster."""
    with ray_cluster.small_cluster() as address:
        yield GIVEN | {"runtime": "ray", "ray__address": address}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return launch.train_well(tmp_path_factory.mktemp("local") / "run", **GIVEN).output


@pytest.fixture(scope="module")
def on_ray(given: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> launch.Run:
    return launch.train_well(tmp_path_factory.mktemp("on_ray") / "run", **given)


def entries_of(output: Path) -> list[Entry]:
    journal = output / "journal.jsonl"
    return [entry for _, entry in read(journal)] if journal.exists() else []


def lost(output: Path, kind: type[ev.Event]) -> list[Any]:
    return [entry.event for entry in entries_of(output) if isinstance(entry.event, kind)]


def assert_equal_runs(one: Path, other: Path) -> None:
    for file in ("model.safetensors", "trainer_state.safetensors"):
        assert launch.final_weights(one, file) == launch.final_weights(other, file)
    assert launch.untimed_metrics(one) == launch.untimed_metrics(other)


def kill_at(process: subprocess.Popen[bytes], output: Path, name: str, has_come: Callable[[list[Entry]], bool]) -> None:
    """Kill the actor with this name at a moment of the run."""
    while True:
        launch.wait_until(process, lambda: has_come(entries_of(output)))
        victim = ray_cluster.actor(output, name)
        victim.suspend()
        time.sleep(0.1)  # what it had said arrives
        if has_come(entries_of(output)):
            victim.kill()
            return
        victim.resume()


def generates(number: int, after_version: int) -> Callable[[list[Entry]], bool]:
    """Whether this instance has responses of this version or a later one to generate."""

    def has_come(entries: list[Entry]) -> bool:
        version, waiting = -1, set[Any]()
        for entry in entries:
            event = entry.event
            if isinstance(event, ev.WeightsPulled) and event.instance == number:
                version = event.version
            if isinstance(event, ev.RolloutReported) and event.instance == number:
                waiting -= {finished.response for finished in event.finished}
            if isinstance(event, ev.InstanceLost) and event.instance == number:
                waiting.clear()
            for command in entry.commands:
                if isinstance(command, do.Submit) and command.instance == number:
                    waiting |= {dispatch.response for dispatch in command.dispatches}
        return version >= after_version and bool(waiting)

    return has_come


def test_a_run_on_ray_gives_the_metrics_and_weights_of_a_local_one(local: Path, on_ray: launch.Run) -> None:
    assert "workers run as Ray actors; the cluster has 6 CPUs, 0 GPUs on 2 nodes" in on_ray.said
    assert_equal_runs(on_ray.output, local)


def test_the_output_of_an_actor_is_in_the_log_of_its_name(on_ray: launch.Run) -> None:
    logs = on_ray.output / "logs"
    assert sorted(log.stem for log in logs.iterdir()) == ["reward-0", "rollout-0", "rollout-1", "training"]
    assert "weights are published in" in (logs / "training.log").read_text()


def test_killed_instances_and_trainers_change_nothing(local: Path, given: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **given)
    try:
        kill_at(process, output, "rollout-1", generates(1, after_version=1))
        launch.wait_until(process, lambda: len(lost(output, ev.InstanceLost)) == 1)
        kill_at(process, output, "training", wounds.trains(after_version=3))
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    [instance], [trainer] = lost(output, ev.InstanceLost), lost(output, ev.TrainerLost)
    assert "worker 'rollout-1' on node " in instance.reason
    assert "worker 'training' on node " in trainer.reason
    assert "was killed or crashed: " in instance.reason
    assert_equal_runs(output, local)
    found = conservation(entries_of(output))
    assert found["adds_up"]
    assert not found["trained_twice"]


@pytest.fixture
def streamed(given: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Settings of a run whose rounds wait for one long response each, while complete groups are trained."""
    lengths = tmp_path / "lengths.json"
    lengths.write_text(json.dumps([[8, 12, 16, 20], [6, 10, 14, 18], [12, 16, 24, 28], [20, 24, 40, 400]] * 12))
    return given | {
        "rollout__deterministic": False,
        "rollout__forced_lengths": lengths,
        "rollout__max_response_length": 400,
        "schedule__preset": "stage-overlap",
    }


def assert_nothing_is_lost(output: Path) -> None:
    found = conservation(entries_of(output))
    assert found["adds_up"]
    assert not found["trained_twice"]


def test_a_trainer_and_then_the_driver_killed_in_mid_stream_lose_no_group(
    streamed: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **streamed)
    try:
        kill_at(process, output, "training", wounds.streams(after_version=1))
        launch.wait_until(process, lambda: len(lost(output, ev.TrainerLost)) == 1)
        launch.wait_until(process, lambda: wounds.streams(after_version=2)(entries_of(output)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
        process.wait()
    launch.train_well(output, **streamed)
    assert_nothing_is_lost(output)


def test_a_lent_instance_that_is_killed_comes_back_after_the_step(streamed: dict[str, Any], tmp_path: Path) -> None:
    output = tmp_path / "run"
    lends = {"schedule__lending": "fixed", "schedule__lend_at": 0.3, "schedule__rollout_batch_size": 8}
    process = launch.start(output, **streamed | lends, trainer__num_ranks=2, trainer__num_replicas=2)
    try:
        launch.wait_until(process, lambda: wounds.lent(entries_of(output)) is not None)
        number = wounds.lent(entries_of(output))
        ray_cluster.actor(output, f"rollout-{number}").kill()
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    [instance] = lost(output, ev.InstanceLost)
    assert instance.instance == number
    assert_nothing_is_lost(output)


STUCK = """
import pathlib, time
FLAG = pathlib.Path({flag!r})

def score(response, answer):
    if not FLAG.exists():
        FLAG.touch()
        time.sleep(1000)
    return float(response.strip() == answer)
"""


def test_a_reward_actor_killed_at_work_costs_at_most_one_score(given: dict[str, Any], tmp_path: Path) -> None:
    output, flag = tmp_path / "run", tmp_path / "flag"
    (tmp_path / "stuck.py").write_text(STUCK.format(flag=str(flag)))
    rewards = {"reward__functions": f"{tmp_path}/stuck.py:score", "reward__timeout_s": 200, "schedule__max_steps": 2}
    process = launch.start(output, **given | rewards)
    try:
        launch.wait_until(process, flag.exists)
        ray_cluster.actor(output, "reward-0").kill()
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    scored = [score for event in lost(output, ev.ResponsesScored) for score in event.scores]
    # If the news that it had begun died with it, the response is scored again.
    assert [score.outcome for score in scored if score.outcome is not Outcome.OK] in ([], [Outcome.CRASH])
    assert len((output / "logs" / "reward-0.log").read_text().split("runs on node")) - 1 == 2


def test_a_killed_driver_leaves_no_actor_and_the_same_command_goes_on(
    local: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **given)
    launch.wait_until(process, lambda: wounds.trains(after_version=3)(entries_of(output)))
    actors = ray_cluster.actors(output)
    assert len(actors) == 4
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(actors, timeout=LIMIT_S)[1] == []
    launch.train_well(output, **given)
    assert_equal_runs(output, local)


def test_checkpoints_of_another_node_are_gathered_and_given_to_the_next_trainer(
    local: Path, given: dict[str, Any], tmp_path: Path
) -> None:
    output = tmp_path / "run"
    elsewhere = {"ray__checkpoints": "gathered", "ray__training__custom": "{second: 0.1}"}
    process = launch.start(output, **given | elsewhere)
    try:
        kill_at(process, output, "training", wounds.trains(after_version=3))
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    said = (output / "logs" / "training.log").read_text()
    assert said.count("was copied to the controller's node") == said.count("checkpoint step_") >= 3
    assert_equal_runs(output, local)


def exported(run: Path, folder: Path) -> bytes:
    """The final weights of a run whose ranks have written their parts."""
    export(find_checkpoint(run), folder, base=None)
    return (folder / "model.safetensors").read_bytes()


def test_a_group_of_two_ranks_trains_as_it_does_locally(given: dict[str, Any], tmp_path: Path) -> None:
    ranks = {"trainer__num_ranks": 2, "schedule__max_steps": 3, "rollout__num_instances": 2, "ray__reward__cpus": 0.1}
    here = launch.train_well(tmp_path / "here", **GIVEN | {k: v for k, v in ranks.items() if "ray" not in k})
    there = tmp_path / "there"
    gathered = {"ray__checkpoints": "gathered", "ray__training__custom": "{second: 0.1}"}
    process = launch.start(there, **given | ranks | gathered)
    try:
        kill_at(process, there, "training-1", wounds.trains(after_version=2))
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert len(lost(there, ev.TrainerLost)) == 1
    assert launch.untimed_metrics(there) == launch.untimed_metrics(here.output)
    weights = [exported(run, tmp_path / f"exported-{run.name}") for run in (here.output, there)]
    assert weights[0] == weights[1]


def test_stopped_and_killed_ranks_instances_and_rewards_change_no_weight_on_ray(
    given: dict[str, Any], tmp_path: Path
) -> None:
    undisturbed, output = launch.train_well(tmp_path / "undisturbed", **wounds.GIVEN).output, tmp_path / "run"
    process = launch.start(output, **given | wounds.GIVEN | {"ray__reward__cpus": 0.1})
    try:
        done = list(wounds.wound(process, output, lambda name: ray_cluster.actor(output, name)))
        assert process.wait(timeout=300) == 0
    finally:
        process.kill()
        process.wait()
    assert len(done) == 4
    assert_wounded_and_well(output, undisturbed, tmp_path)


def test_a_cluster_that_is_not_there_is_an_error_before_any_work(tmp_path: Path) -> None:
    result = launch.train(tmp_path / "run", runtime="ray", ray__address="127.0.0.1:1")
    assert result.returncode == 2
    assert "tailrace: cannot reach a Ray cluster at ray.address '127.0.0.1:1'" in result.stderr
    assert not (tmp_path / "run").exists()
