"""What the core knew when the journal ended, rebuilt without touching the run.

The newest checkpoint whose snapshot can be read gives the state, the journal after it the rest; without one the whole
journal is read. Unlike a resume, nothing is compared with the payload store and nothing is repaired.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tailrace.core import codec
from tailrace.core.coordinator import Coordinator
from tailrace.core.events import RunStarted
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.waits import Wait
from tailrace.observe import journal_file
from tailrace.observe.run_files import RunFiles
from tailrace.policies.strategies import policies_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    schedule: Schedule
    state: State
    now: float
    """Run time of the last entry."""

    def waits(self) -> list[Wait]:
        return Coordinator(self.schedule, policies=policies_of(self.schedule), state=self.state).waits()


def recollect(files: RunFiles) -> Recollection:
    """``ValueError`` where the journal cannot be read, ``CoreError`` where it is no journal of this program."""
    schedule = _schedule(files)
    state, position, now = _start(files, schedule)
    coordinator = Coordinator(schedule, policies=policies_of(schedule), state=state)
    for _, entry in journal_file.read(files.journal, position):
        coordinator.handle(entry.event, now=entry.now)
        now = entry.now
    return Recollection(schedule=schedule, state=state, now=now)


def _schedule(files: RunFiles) -> Schedule:
    first = next((entry for _, entry in journal_file.read(files.journal)), None)
    if first is None or not isinstance(first.event, RunStarted):
        raise ValueError(f"{files.journal} does not begin with the start of a run")
    return first.event.schedule


def _start(files: RunFiles, schedule: Schedule) -> tuple[State, int, float]:
    for checkpoint in reversed(files.checkpoints()):
        try:
            saved = json.loads((checkpoint / "run_state.json").read_text(encoding="utf-8"))
            state = codec.decode(State, saved["coordinator"])
            position, now = int(saved["journal_size"]), float(saved["now"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a damaged snapshot: an older one, or the whole journal, gives the same state
        if position <= files.journal.stat().st_size:
            return state, position, now
    return State.initial(schedule), 0, 0.0
