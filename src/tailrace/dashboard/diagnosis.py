"""What the doctor sees and what it says. Data only; ``checks.py`` judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.core.run.waits import Wait
from tailrace.dashboard.machine import Machine
from tailrace.observe.account import Account
from tailrace.observe.journal.recollection import Recollection

FINISHED, RUNNING, STOPPED = "finished", "running", "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong or slow, and one thing to do about it."""

    subject: str
    """A short name: `disk`, `reward`, `instance 0`, ..."""
    what: str
    suggestion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRun:
    """Everything a check may read about the run and its machine. Checks open no file and read no clock."""

    path: str
    life: str
    """`finished`, `running` or `stopped`."""
    account: Account
    memory: Recollection | None
    """None where the core's state cannot be rebuilt."""
    memory_problem: str
    now: float
    """Seconds since the run began: until this moment while it is running, else until its last journal entry."""
    machine: Machine
    checkpoint_bytes: int
    """Size of the newest checkpoint."""
    damaged: tuple[tuple[str, str], ...]
    """(checkpoint, what is wrong with it)."""
    num_whole_checkpoints: int
    has_torn_end: bool
    log_complaint: str
    """A line of an engine's or the trainer's log that says the disk is full; it may be older than the last start."""
    stop_reason: str
    """Why the run ended, in its own words; empty while it goes on, or if it was cut off."""
    reward: dict[str, Any]
    """The section `reward` of the settings of the run."""

    @property
    def waits(self) -> list[Wait]:
        """What the run waits for; empty unless it is running."""
        if self.memory is None or self.life != RUNNING:
            return []
        return self.memory.waits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    run: ExaminedRun
    headline: str
    findings: tuple[Finding, ...]
