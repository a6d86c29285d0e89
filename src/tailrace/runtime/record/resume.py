"""Resumes a run: restores the newest checkpoint, then replays the journal after it.

The core is restored from the checkpoint's snapshot and fed the rest of the journal (the tail), so resuming takes time
in proportion to the tail, not to the run. The trainer repeats the steps of the tail with data from the payload store
(see ``TakenSteps``). If the payload of an event did not reach the disk before a crash, the journal ends before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import Version
from tailrace.core.journal import Entry, replay
from tailrace.core.schedule import Schedule
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_segments import end_of
from tailrace.observe.journal.recollection import first_entry, schedule_at
from tailrace.observe.metrics.rows import Row
from tailrace.policies.strategies import policies_of
from tailrace.runtime.record.taken_steps import TakenSteps
from tailrace.store.payload_store import PayloadStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledRun:
    """The state of a run that is resumed."""

    coordinator: Coordinator
    metrics: Any | None
    """State of the metrics at the time of the checkpoint; None: there is no checkpoint, or it holds none."""
    checkpoint: Path | None
    tail: tuple[Entry, ...]
    """Entries after the checkpoint. The coordinator has already handled them."""
    begun: tuple[do.Accumulate, ...]
    """Pieces of a step that were requested together with the checkpoint. The tail may contain the end of that step, but
    not its beginning."""
    now: float
    journal_size: int
    metrics_size: int
    """Bytes of metrics.jsonl at the time of the checkpoint. Later rows are computed again from the tail."""

    checkpoint_version: Version | None
    summary: Row
    """The newest value of every metric at the time of the checkpoint."""

    @property
    def is_new(self) -> bool:
        return self.journal_size == 0

    def taken_steps(self) -> TakenSteps:
        """Return the steps that were completed after the checkpoint."""
        steps = TakenSteps(self.begun)
        for entry in self.tail:
            steps.feed(entry)
        return steps


def recall(*, journal: Path, checkpoint: Path | None, store: PayloadStore, schedule: Schedule) -> RecalledRun:
    """Rebuild the core as it was at the end of the journal, and what the checkpoint says of the metrics. A run with a
    past follows the schedule of its journal; ``schedule`` is that of a new one."""
    state = {} if checkpoint is None else json.loads((checkpoint / "run_state.json").read_text())
    if state or first_entry(journal) is not None:
        schedule = schedule_at(journal, state)
    policies, metrics = policies_of(schedule), None
    coordinator = Coordinator(schedule, policies=policies)
    position, metrics_size, now, version, summary = 0, 0, 0.0, None, {}
    if state:
        coordinator = Coordinator.restore(schedule, state["coordinator"], policies=policies)
        metrics = state["metrics"]
        position, metrics_size, now = state["journal_size"], state["metrics_size"], state["now"]
        version, summary = state["version"], state["summary"]
    begun = coordinator.step_in_training()
    tail: list[Entry] = []
    for end, entry in journal_file.read(journal, position) if end_of(journal) else ():
        if not _has_payload(entry.event, store):
            break
        tail.append(entry)
        position = end
    absorb(coordinator, tail)
    return RecalledRun(
        coordinator=coordinator,
        metrics=metrics,
        checkpoint=checkpoint,
        tail=tuple(tail),
        begun=begun,
        now=tail[-1].now if tail else now,
        journal_size=position,
        metrics_size=metrics_size,
        checkpoint_version=version,
        summary=summary,
    )


def absorb(coordinator: Coordinator, entries: Iterable[Entry]) -> None:
    for _ in replay(coordinator, entries):
        pass


def _has_payload(event: ev.Event, store: PayloadStore) -> bool:
    if not isinstance(event, ev.RolloutReported):
        return True
    return all(store.length(part.response) >= part.length for part in event.parts)
