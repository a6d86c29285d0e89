"""Streamed steps for real: they train what whole steps train, and a kill or a stop in mid-stream loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.torch import load_file

from end_to_end import launch
from end_to_end.test_lost_instances import worker
from end_to_end.wounds import entries_of, lent, losses, stop_at, streams
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.observe.prompts.conservation import conservation
from tailrace.trainer.checkpoints.export import export, find_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
STEPS = 6
LENGTHS = [[8, 12, 16, 20], [6, 10, 14, 18], [12, 16, 24, 28], [20, 24, 40, 400]]
"""Of four prompts of a batch: one response takes most of the round."""


REWARD = """
def score(response, answer):
    return sum(response.encode()) % 11 / 10
"""


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """Settings of a run whose rounds wait for one long response each, while the trainer is free."""
    (tmp_path / "lengths.json").write_text(json.dumps(LENGTHS * 2 * STEPS))
    (tmp_path / "reward.py").write_text(REWARD)
    return {
        "reward__functions": f'["{tmp_path / "reward.py"}:score"]',
        "rollout__forced_lengths": tmp_path / "lengths.json",
        "rollout__max_response_length": 400,
        "rollout__num_instances": 2,
        "schedule__preset": "stage-overlap",
        "schedule__max_steps": STEPS,
        "trainer__learning_rate": 1e-4,
        "save_interval": 2,
        "eval": "[]",
        "eval_interval": "null",
    }


LENDING: dict[str, Any] = {
    "schedule__lending": "fixed",
    "schedule__lend_at": 0.3,
    "schedule__rollout_batch_size": 8,
    "trainer__num_ranks": 2,
    "trainer__num_replicas": 2,
}


def pieces(output: Path) -> dict[int, list[do.Accumulate]]:
    """The pieces of each step, as they were sent the last time."""
    found: dict[int, list[do.Accumulate]] = {}
    for entry in entries_of(output):
        for command in entry.commands:
            if isinstance(command, do.Accumulate):
                found[command.version] = [*(found[command.version] if command.piece else []), command]
    return found


def trained(output: Path) -> dict[tuple[int, ResponseId], float]:
    """The score of each response that was trained, by the step."""
    return {
        (version, response): score
        for version, sent in pieces(output).items()
        for piece in sent
        for response, score in zip(piece.responses, piece.scores, strict=True)
    }


def share_of_others(one: Path, other: Path) -> float:
    """The share of the final weights of two runs that differ by more than 1e-5. AdamW divides by the size of a
    gradient, so one that is nothing but rounding may move a weight either way, by up to the learning rate."""
    found = []
    for output in (one, other):
        export(find_checkpoint(output), output / "exported", base=None)
        found.append(load_file(output / "exported" / "model.safetensors"))
    weights, others = found
    assert weights.keys() == others.keys()
    num_others = sum(int(((weights[name] - others[name]).abs() > 1e-5).sum()) for name in weights)
    return num_others / sum(tensor.numel() for tensor in weights.values())


def assert_nothing_is_lost(output: Path, num_groups: int = 4) -> None:
    found = conservation(entries_of(output))
    assert found["adds_up"]
    assert not found["trained_twice"]
    steps = pieces(output)
    assert sorted(steps) == list(range(STEPS))
    for sent in steps.values():
        groups = [group for piece in sent for group in sorted({r.group for r in piece.responses})]
        assert len(groups) == len(set(groups)) == num_groups


def test_a_step_in_pieces_is_the_step_on_the_whole_batch(tmp_path: Path, given: dict[str, Any]) -> None:
    few = given | {"schedule__max_steps": 4, "save_interval": "null"}
    whole = launch.train_well(tmp_path / "whole", **few | {"schedule__preset": "sync"}).output
    streamed = launch.train_well(tmp_path / "streamed", **few).output
    assert all(len(sent) == 1 for sent in pieces(whole).values())
    assert any(len(sent) > 1 for sent in pieces(streamed).values())
    assert trained(whole) == trained(streamed)
    norms = [[row["actor/grad_norm"] for row in launch.untimed_metrics(each)] for each in (whole, streamed)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert min(norms[0]) > 0.01
    assert share_of_others(whole, streamed) < 1e-3


def test_a_trainer_killed_in_mid_stream_gets_the_same_pieces_again(tmp_path: Path, given: dict[str, Any]) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **given)

    def find(name: str) -> psutil.Process:
        entry = f"tailrace.workers.{name}_worker:serve"
        return next(child for child in launch.children(process) if entry in launch.words(child))

    try:
        trainer = stop_at(process, output, find, "training", streams(after_version=1))
        before = pieces(output)
        version = max(before)
        trainer.kill()
        assert process.wait(timeout=200) == 0
    finally:
        process.kill()
        process.wait()
    [lost] = losses(output, ev.TrainerLost)
    assert "SIGKILL" in lost.reason
    assert pieces(output)[version][: len(before[version])] == before[version]
    assert_nothing_is_lost(output)


def test_a_controller_killed_in_mid_stream_goes_on_with_the_same_pieces(tmp_path: Path, given: dict[str, Any]) -> None:
    output = tmp_path / "run"
    process = launch.start(output, **given)
    has_come = streams(after_version=1)
    assert launch.kill_when(process, lambda: has_come(entries_of(output))) == []
    before = pieces(output)
    version = max(before)
    launch.train_well(output, **given)
    assert pieces(output)[version][: len(before[version])] == before[version]
    assert_nothing_is_lost(output)


def test_a_run_that_is_asked_to_stop_in_mid_stream_saves_the_version_before(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    output, given = tmp_path / "run", given | {"save_interval": 100, "limits__stop_s": 200}
    process = subprocess.Popen(launch.command(output, **given), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    has_come = streams(after_version=1)
    try:
        launch.wait_until(process, lambda: has_come(entries_of(output)))
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=200)[0].decode()
    finally:
        process.kill()
        process.wait()
    assert "the run ended early: it was asked to stop\n" in said
    entries = entries_of(output)
    version = max(entry.event.version for entry in entries if isinstance(entry.event, ev.StepTrained))
    assert (output / "checkpoints" / "latest").resolve().name == f"step_{version}"
    again = launch.train_well(output, **given)
    assert "repeating" not in again.said
    assert_nothing_is_lost(output)


@pytest.mark.parametrize("placement", ["shared", "colocated"])
def test_a_lent_instance_and_then_the_controller_are_killed_and_nothing_is_lost(
    tmp_path: Path, given: dict[str, Any], placement: str
) -> None:
    output, given = tmp_path / "run", given | LENDING | {"schedule__placement": placement}
    process = launch.start(output, **given)
    try:
        launch.wait_until(process, lambda: lent(entries_of(output)) is not None)
        number = lent(entries_of(output))
        victim = worker(process, f"rollout-{number}" if number is not None else "rollout-1")
        victim.kill()
        launch.wait_until(process, lambda: bool(losses(output, ev.InstanceLost)))
        launch.kill_when(process, lambda: len(losses(output, ev.StepTrained)) >= 2)
    finally:
        process.kill()
        process.wait()
    launch.train_well(output, **given)
    assert_nothing_is_lost(output, num_groups=8)
    entries = entries_of(output)
    sent = [command for entry in entries for command in entry.commands if isinstance(command, do.Accumulate)]
    assert {piece.replicas for piece in sent} & {(0,), (1,)}, "no piece was trained on what was lent"
    at = next(i for i, entry in enumerate(entries) if isinstance(entry.event, ev.InstanceLost))
    lost = entries[at].event
    later = entries[at:]
    assert isinstance(lost, ev.InstanceLost)
    started = next(i for i, e in enumerate(later) for c in e.commands if isinstance(c, do.StartInstance))
    assert any(isinstance(entry.event, ev.StepTrained) for entry in later[: started + 1])


def test_lending_trains_what_the_synchronous_run_trains(tmp_path: Path, given: dict[str, Any]) -> None:
    few = given | LENDING | {"schedule__max_steps": 4, "save_interval": "null"}
    whole = launch.train_well(
        tmp_path / "whole", **few | {"schedule__preset": "sync", "schedule__lending": "never", "schedule__lend_at": 0.4}
    ).output
    streamed = launch.train_well(tmp_path / "streamed", **few).output
    assert any(piece.replicas for sent in pieces(streamed).values() for piece in sent)
    assert trained(whole) == trained(streamed)
    assert share_of_others(whole, streamed) < 1e-3
