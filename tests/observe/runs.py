"""Run directories as a controller leaves them, made from the history of a world."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from core.world import World
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.journal.journal_file import JournalFile
from tailrace.observe.metrics.rows import Metrics
from tailrace.policies.strategies import policies_of
from tailrace.store.checksums import write_checksums


def write_journal(run: Path, entries: Iterable[Entry]) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    journal = JournalFile.open(run / "journal.jsonl")
    for entry in entries:
        journal.append(entry)
    journal.close()
    (run / "lock").touch()
    (run / "logs").mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps({"seed": 0, "reward": {"timeout_s": 10.0}}))
    return run


def write_checkpoint(run: Path, schedule: Schedule, entries: list[Entry], step: int) -> Path:
    """A checkpoint of `step` with the core's state as of the end of `entries`, which are the journal's first."""
    coordinator, metrics, size = Coordinator(schedule, policies=policies_of(schedule)), Metrics(), 0
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for entry, line in zip(entries, lines, strict=False):
        coordinator.handle(entry.event, now=entry.now)
        metrics.feed(entry)
        size += len(line)
    folder = run / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True)
    state: dict[str, Any] = {
        "coordinator": coordinator.snapshot(),
        "metrics": metrics.snapshot(),
        "journal_size": size,
        "metrics_size": 0,
        "now": entries[-1].now,
    }
    (folder / "run_state.json").write_text(json.dumps(state))
    (folder / "trainer_state.json").write_text(json.dumps({"version": step}))
    (folder / "config.json").write_text("{}")
    for name in ("model", "trainer_state"):
        save_file({"weight": np.zeros((4, 4), np.float32)}, folder / f"{name}.safetensors")
    write_checksums(folder)
    return folder


def advance_until(world: World, is_reached: Callable[[World], bool]) -> None:
    for _ in range(5000):
        if is_reached(world):
            return
        world.advance()
    raise AssertionError("the history never came to that point")
