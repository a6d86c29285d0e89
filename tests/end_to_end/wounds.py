"""Stop and kill workers of a running run, one after the other, each at a moment at which it has something to do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from end_to_end import launch
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.journal.journal_file import read

GIVEN: dict[str, Any] = {
    "rollout__deterministic": True,
    "rollout__num_instances": 2,
    "trainer__num_ranks": 2,
    "schedule__max_steps": 6,
    "save_interval": 2,
    "eval": "[]",
    "eval_interval": "null",
    # A healthy worker that is slow may be killed as well: that changes nothing, and there are enough restarts.
    "limits__train_s": 15,
    "limits__weights_s": 15,
    "limits__checkpoint_s": 15,
    "limits__progress_s": 15,
    "limits__max_restarts": 20,
}
Find = Callable[[str], psutil.Process]
"""Returns the process of the worker with this name."""
Moment = Callable[[list[Entry]], bool]


def entries_of(output: Path) -> list[Entry]:
    journal = output / "journal.jsonl"
    return [entry for _, entry in read(journal)] if journal.exists() else []


def trains(after_version: int) -> Moment:
    """Whether a step from this version or a later one is in progress."""

    def has_come(entries: list[Entry]) -> bool:
        version = -1
        for entry in entries:
            if isinstance(entry.event, ev.StepTrained | ev.TrainerLost):
                version = -1
            for command in entry.commands:
                version = command.version if isinstance(command, do.Accumulate) else version
        return version >= after_version

    return has_come


def streams(after_version: int) -> Moment:
    """Whether the trainer has added a piece of the step from this version or a later one, whose round still runs."""

    def has_come(entries: list[Entry]) -> bool:
        version, is_round_over = -1, True
        for entry in entries:
            if isinstance(entry.event, ev.GradientsAccumulated):
                version = entry.event.version
            if isinstance(entry.event, ev.StepTrained | ev.TrainerLost | ev.RunResumed):
                version = -1
            for command in entry.commands:
                is_round_over = isinstance(command, do.FinishStep) or (
                    is_round_over and not isinstance(command, do.Accumulate)
                )
        return version >= after_version and not is_round_over

    return has_come


def lent(entries: list[Entry]) -> int | None:
    """The instance that has released its memory to training, while its round still runs; None: there is none."""
    found, is_round_over = None, True
    for entry in entries:
        if isinstance(entry.event, ev.MemoryReleased):
            found = int(entry.event.instance)
        if isinstance(entry.event, ev.StepTrained | ev.RunResumed | ev.InstanceLost):
            found = None
        for command in entry.commands:
            is_round_over = isinstance(command, do.FinishStep) or (
                is_round_over and not isinstance(command, do.Accumulate)
            )
    return None if is_round_over else found


def generates(number: int) -> Moment:
    """Whether this instance has responses to generate."""

    def has_come(entries: list[Entry]) -> bool:
        waiting = set[Any]()
        for entry in entries:
            event = entry.event
            if isinstance(event, ev.RolloutReported) and event.instance == number:
                waiting -= {finished.response for finished in event.finished}
            if isinstance(event, ev.InstanceLost) and event.instance == number:
                waiting.clear()
            for command in entry.commands:
                if isinstance(command, do.Submit) and command.instance == number:
                    waiting |= {dispatch.response for dispatch in command.dispatches}
        return bool(waiting)

    return has_come


def scores_nothing(entries: list[Entry]) -> bool:
    """Whether some scores are back and none is outstanding."""
    asked, back = set[Any](), set[Any]()
    for entry in entries:
        if isinstance(entry.event, ev.ResponsesScored):
            back |= {scored.response for scored in entry.event.scores}
        for command in entry.commands:
            if isinstance(command, do.Score):
                asked |= {*command.responses}
    return bool(back) and asked == back


def stop_at(process: subprocess.Popen[bytes], output: Path, find: Find, name: str, has_come: Moment) -> psutil.Process:
    """Stop a worker at a moment of the run, and return it."""
    while True:
        launch.wait_until(process, lambda: has_come(entries_of(output)))
        try:
            victim = find(name)
            victim.suspend()
            time.sleep(0.1)  # what it had said arrives
            if has_come(entries_of(output)):
                return victim
            victim.resume()
        except psutil.NoSuchProcess:
            pass  # it ended meanwhile


def losses(output: Path, kind: type[Any]) -> list[Any]:
    return [entry.event for entry in entries_of(output) if isinstance(entry.event, kind)]


def wound(process: subprocess.Popen[bytes], output: Path, find: Find) -> Iterator[str]:
    """Disturb a run with two ranks and two instances, and yield what was done."""
    stop_at(process, output, find, "training-1", trains(after_version=0))
    launch.wait_until(process, lambda: len(losses(output, ev.TrainerLost)) >= 1)
    yield "a rank was stopped"
    stop_at(process, output, find, "training", trains(after_version=1)).kill()
    launch.wait_until(process, lambda: len(losses(output, ev.TrainerLost)) >= 2)
    yield "a rank was killed"
    stop_at(process, output, find, "rollout-1", generates(1))
    launch.wait_until(process, lambda: len(losses(output, ev.InstanceLost)) >= 1)
    yield "an instance was stopped"
    victim = stop_at(process, output, find, "reward-0", scores_nothing)
    launch.wait_until(process, lambda: not victim.is_running() or victim.status() == psutil.STATUS_ZOMBIE)
    yield "a reward process was stopped between two scores"
