"""Instances that are killed under a run for real: their responses go on elsewhere, and a run without any says so."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from end_to_end import launch
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.responses.response import ResponsePhase
from tailrace.observe.journal.journal_file import read
from tailrace.observe.schedules.comparison import Compared
from tailrace.policies.strategies import policies_of
from tailrace.store.payload_reader import PayloadReader

pytestmark = [pytest.mark.slow, pytest.mark.long]
GIVEN: dict[str, Any] = {
    "schedule__preset": "staleflow",
    "schedule__max_steps": 40,  # long enough to be caught at work on a busy machine
    "rollout__num_instances": 2,
    "rollout__max_response_length": 256,
    "eval": "[]",
    "eval_interval": "null",
    "save_interval": "null",
    "keep_rollouts": True,
}


def worker(process: subprocess.Popen[Any], name: str) -> psutil.Process:
    """A worker of the run by its name, which is that of its log."""
    children = psutil.Process(process.pid).children(recursive=True)
    return next(child for child in children if Path(os.readlink(f"/proc/{child.pid}/fd/1")).stem == name)


def entries_of(output: Path) -> list[Entry]:
    journal = output / "journal.jsonl"
    return [entry for _, entry in read(journal)] if journal.exists() else []


def followed(entries: list[Entry]) -> Coordinator:
    """The coordinator as it was after these entries."""
    assert isinstance(entries[0].event, ev.RunStarted)
    schedule = entries[0].event.schedule
    coordinator = Coordinator(schedule, policies=policies_of(schedule))
    for entry in entries:
        assert tuple(coordinator.handle(entry.event, now=entry.now)) == entry.commands
    return coordinator


def begun(entries: list[Entry], instance: InstanceId) -> dict[ResponseId, int]:
    """Tokens of the responses that run on the instance and have some."""
    if not entries:
        return {}
    rooms = followed(entries).rooms
    running = [rooms.responses.response(response) for response in rooms.fleet.instances[instance].running]
    return {r.id: r.length for r in running if r.phase is ResponsePhase.RUNNING and r.length}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A run that lost an instance half-way and ended well."""

    output: Path
    instance: InstanceId
    tokens: dict[ResponseId, np.ndarray]
    """Of what it generated, as far as it had told when it was killed."""
    entries: list[Entry]
    at: int
    """Which entry tells of the loss."""


@pytest.fixture(scope="module")
def loss(tmp_path_factory: pytest.TempPathFactory) -> Loss:
    output = tmp_path_factory.mktemp("loss") / "run"
    process = launch.start(output, **GIVEN)
    try:
        instance, tokens = kill_one_at_work(process, output)
        assert process.wait(timeout=200) == 0
    finally:
        process.kill()
        process.wait()
    entries = entries_of(output)
    at = next(i for i, entry in enumerate(entries) if isinstance(entry.event, ev.InstanceLost))
    return Loss(output=output, instance=instance, tokens=tokens, entries=entries, at=at)


def kill_one_at_work(process: subprocess.Popen[Any], output: Path) -> tuple[InstanceId, dict[ResponseId, np.ndarray]]:
    """Kill an instance in the middle of responses, after some versions. Training waits until it is back."""
    while True:
        launch.wait_until(process, lambda: is_at_work(entries_of(output)))
        entries = entries_of(output)
        instance = next((i for i in map(InstanceId, (0, 1)) if begun(entries, i)), None)
        if instance is None:
            continue  # its responses ended meanwhile
        victim = worker(process, f"rollout-{instance}")
        victim.suspend()
        time.sleep(0.1)  # what it had said arrives
        if lengths := begun(entries_of(output), instance):
            break
        victim.resume()
    trainer = worker(process, "training")
    trainer.suspend()
    with PayloadReader.open(output / "payload") as payload:
        tokens = {r: payload.response(r).tokens[:length] for r, length in lengths.items()}
    num_entries = len(entries_of(output))
    victim.kill()
    try:
        launch.wait_until(process, lambda: is_back(entries_of(output)[num_entries:], instance))
    finally:
        trainer.resume()
    return instance, tokens


def is_at_work(entries: list[Entry]) -> bool:
    is_late = any(isinstance(e.event, ev.WeightsPulled) and e.event.version >= 2 for e in entries)
    return is_late and any(begun(entries, InstanceId(number)) for number in (0, 1))


def is_back(entries: list[Entry], instance: InstanceId) -> bool:
    return any(isinstance(e.event, ev.InstanceStarted) and e.event.instance == instance for e in entries)


def submits(entries: list[Entry], choose: Callable[[InstanceId], bool]) -> list[do.Dispatch]:
    found = [c for entry in entries for c in entry.commands if isinstance(c, do.Submit) and choose(c.instance)]
    return [dispatch for submit in found for dispatch in submit.dispatches]


def test_responses_of_a_killed_instance_go_on_elsewhere_from_their_last_streamed_token(loss: Loss) -> None:
    entry = loss.entries[loss.at].event
    assert isinstance(entry, ev.InstanceLost)
    assert entry.instance == loss.instance
    assert "SIGKILL" in entry.reason
    given_out = submits(loss.entries[loss.at :], lambda instance: True)
    starts = {d.response: d.start for d in reversed(given_out) if d.response in loss.tokens}
    assert starts == {response: len(tokens) for response, tokens in loss.tokens.items()}
    elsewhere = submits(loss.entries[loss.at :], lambda instance: instance != loss.instance)
    assert any(d.start > 0 and d.response in loss.tokens for d in elsewhere)
    with PayloadReader.open(loss.output / "payload") as payload:
        for response, tokens in loss.tokens.items():
            assert (payload.response(response).tokens[: len(tokens)] == tokens).all()


def test_the_ledger_does_not_notice_a_loss(loss: Loss) -> None:
    coordinator = followed(loss.entries[: loss.at])
    before = dict(coordinator.rooms.collection.ledger.entries)
    entry = loss.entries[loss.at]
    coordinator.handle(entry.event, now=entry.now)
    after = coordinator.rooms.collection.ledger.entries
    assert before
    assert {group: after[group] for group in before} == before


def test_a_restarted_instance_takes_work_at_a_later_version(loss: Loss) -> None:
    later = loss.entries[loss.at :]
    pulls = [i for i, e in enumerate(later) if isinstance(e.event, ev.WeightsPulled) and is_of(e.event, loss.instance)]
    assert pulls
    assert submits(later[pulls[0] :], lambda instance: instance == loss.instance)


def is_of(event: ev.WeightsPulled, instance: InstanceId) -> bool:
    return event.instance == instance and event.version >= 2


def test_a_run_that_lost_an_instance_ends_normally_and_within_the_bound(loss: Loss) -> None:
    found = Compared.of("staleflow", loss.entries)
    assert found.figures.num_steps == GIVEN["schedule__max_steps"]
    assert found.figures.staleness_violations == 0
    assert found.prompts["adds_up"]
    assert not found.prompts["trained_twice"]


def test_a_run_whose_instances_all_die_whenever_they_start_ends_with_a_sentence(tmp_path: Path) -> None:
    output = tmp_path / "run"
    arguments = launch.command(output, **GIVEN | {"limits__max_restarts": 1, "schedule__max_steps": 500})
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        launch.wait_until(process, lambda: any(begun(entries_of(output), InstanceId(n)) for n in (0, 1)))
        deadline = time.monotonic() + 100
        while process.poll() is None:
            assert time.monotonic() < deadline
            kill_instances(process)
            time.sleep(0.005)
    finally:
        process.kill()
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert "the run ended early: no rollout instance is left: instance " in printed
    assert "was lost 2 times within one step; the last time: worker 'rollout-" in printed
    assert "killed by SIGKILL" in printed
    assert "Traceback" not in printed
    starts = [c for entry in entries_of(output) for c in entry.commands if isinstance(c, do.StartInstance)]
    assert len(starts) == 2 * (1 + 1)


def kill_instances(process: subprocess.Popen[Any]) -> None:
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        for child in [child for child in children if "tailrace.workers.rollout_worker:serve" in child.cmdline()]:
            child.kill()
    except psutil.NoSuchProcess:
        pass  # it ended by itself a moment ago
