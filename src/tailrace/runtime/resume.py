"""Where a run goes on: the newest checkpoint, then the journal after it, then the end of the journal.

The core is restored from the checkpoint's snapshot and fed the journal's tail, so resuming takes time in the length
of the tail, not of the run. The trainer takes the tail's steps again from the payload store. An event whose payload
is missing (written, but the machine died before it reached the disk) ends the journal there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import Version
from tailrace.core.journal import Entry, replay
from tailrace.core.schedule import Schedule
from tailrace.observe import journal_file
from tailrace.observe.metrics import Metrics, Row
from tailrace.policies.strategies import policies_of
from tailrace.store.payload_store import PayloadStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a run when a command takes it up."""

    coordinator: Coordinator
    metrics: Metrics
    checkpoint: Path | None
    tail: tuple[Entry, ...]
    """Entries after the checkpoint, already absorbed by the coordinator."""
    begun: do.TrainStep | None
    """A step that was asked for together with the checkpoint: the tail may tell of its end, never of its beginning."""
    now: float
    journal_size: int
    metrics_size: int
    """Bytes of metrics.jsonl that the checkpoint knows of; rows after it come again from the tail."""

    checkpoint_version: Version | None
    summary: Row
    """The newest value of every metric, as the checkpoint knew it."""

    @property
    def is_new(self) -> bool:
        return self.journal_size == 0

    def steps_to_redo(self) -> list[do.TrainStep]:
        """Steps that were completed after the checkpoint, in order."""
        asked = [] if self.begun is None else [self.begun]
        asked += [c for entry in self.tail for c in entry.commands if isinstance(c, do.TrainStep)]
        done = {entry.event.version for entry in self.tail if isinstance(entry.event, ev.StepTrained)}
        # A step may have been asked for more than once, if the run was resumed in between.
        by_version = {command.version: command for command in asked if command.version + 1 in done}
        return [by_version[version] for version in sorted(by_version)]


def recall(*, journal: Path, checkpoint: Path | None, store: PayloadStore, schedule: Schedule) -> Past:
    """Rebuild the core and the metrics as they were at the end of the journal."""
    policies, metrics = policies_of(schedule), Metrics()
    coordinator = Coordinator(schedule, policies=policies)
    position, metrics_size, now, version, summary = 0, 0, 0.0, None, {}
    if checkpoint is not None:
        state = json.loads((checkpoint / "run_state.json").read_text())
        coordinator = Coordinator.restore(schedule, state["coordinator"], policies=policies)
        metrics = Metrics.restore(state["metrics"])
        position, metrics_size, now = state["journal_size"], state["metrics_size"], state["now"]
        version, summary = state["version"], state["summary"]
    begun = coordinator.step_in_progress()
    tail: list[Entry] = []
    for end, entry in journal_file.read(journal, position) if journal.exists() else ():
        if not _has_payload(entry.event, store):
            break
        tail.append(entry)
        position = end
    absorb(coordinator, tail)
    return Past(
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
    return all(store.length(part.trajectory) >= part.length for part in event.parts)
