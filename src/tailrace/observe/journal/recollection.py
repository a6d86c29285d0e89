"""Rebuilds the core's state at the end of a journal, or at a position in it, without touching the run.

It starts from the newest checkpoint that can be read and replays the journal after it; without a checkpoint it replays
the whole journal. Unlike a resume, nothing is compared with the payload store and nothing is repaired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.core import codec
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Schedule
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_segments import end_of
from tailrace.observe.journal.run_files import RunFiles
from tailrace.policies.strategies import policies_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    coordinator: Coordinator
    now: float
    """Run time of the last entry."""

    def waits(self) -> list[Wait]:
        return self.coordinator.waits()


def recollect(files: RunFiles, *, until: int | None = None) -> Recollection:
    """Rebuild the core's state. ``ValueError`` if the journal cannot be read, ``CoreError`` if it does not fit.

    ``until``: the state at this position of the journal, whatever was written since.
    """
    until = end_of(files.journal) if until is None else until
    coordinator, position, now = _start(files, until)
    for _, entry in journal_file.read(files.journal, position, until=until):
        coordinator.handle(entry.event, now=entry.now)
        now = entry.now
    return Recollection(coordinator=coordinator, now=now)


def schedule_at(journal: Path, saved: Mapping[str, Any]) -> Schedule:
    """Return the schedule that a run followed when a checkpoint saved this state; without one, at its start.

    Checkpoints of older releases hold no schedule: then it was the same during the whole run.
    """
    if "schedule" in saved:
        found: Schedule = codec.decode(Schedule, saved["schedule"])
        return found
    first = first_entry(journal)
    if first is None or not isinstance(first.event, RunStarted):
        raise ValueError(f"{journal} does not begin with the start of a run")
    return first.event.schedule


def first_entry(journal: Path) -> Entry | None:
    """Return the first entry; None if none was written whole."""
    if not end_of(journal):
        return None
    with closing(journal_file.read(journal)) as entries:
        return next((entry for _, entry in entries), None)


def _start(files: RunFiles, until: int) -> tuple[Coordinator, int, float]:
    for checkpoint in reversed(files.checkpoints()):
        try:
            saved = json.loads((checkpoint / "run_state.json").read_text(encoding="utf-8"))
            schedule = schedule_at(files.journal, saved)
            coordinator = Coordinator.restore(schedule, saved["coordinator"], policies=policies_of(schedule))
            position, now = int(saved["journal_size"]), float(saved["now"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged snapshot: an older one, or the whole journal, gives the same state
        if position <= until:
            return coordinator, position, now
    schedule = schedule_at(files.journal, {})
    return Coordinator(schedule, policies=policies_of(schedule)), 0, 0.0
