"""A run directory as a reader sees it: nothing here writes, repairs or waits.

Reading is safe at any moment of a run's life, also while its controller writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.core.outcomes import Part
from tailrace.observe.journal.journal_file import DamagedJournal, check_format
from tailrace.observe.journal.journal_segments import closed_segments, end_of

_PART_LOGS = {Part.FUNCTION: "reward", Part.TESTS: "tests", Part.JUDGE: "judge"}


def logs_of(part: Part) -> str:
    """The logs of the workers that make this part of the scores, as a pattern inside the run directory."""
    return f"logs/{_PART_LOGS[part]}-*.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    path: Path

    @classmethod
    def find(cls, path: Path) -> RunFiles:
        """``ValueError`` where no run has begun, or where its journal is of another format."""
        files = cls(path=path.absolute())
        if not path.is_dir():
            raise ValueError(f"there is no run directory {path}")
        if not end_of(files.journal):
            raise ValueError(f"{path} holds no run: there is nothing in its journal.jsonl")
        with contextlib.suppress(DamagedJournal):  # what is damaged, and where, is for whoever reads all of it
            check_format(files.journal)
        return files

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def payload(self) -> Path:
        return self.path / "payload"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def is_alive(self) -> bool:
        """Whether a controller holds the run's lock."""
        try:
            lock = os.open(self.path / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def checkpoints(self) -> list[Path]:
        """Complete ones, oldest first."""
        found = [path for path in (self.path / "checkpoints").glob("step_*") if _step(path) >= 0]
        return sorted(found, key=_step)

    def config(self) -> dict[str, Any]:
        """The resolved settings; empty where they cannot be read."""
        return _read_json(self.path / "config.json")

    def changes(self) -> list[dict[str, Any]]:
        """What was changed when the run was continued, oldest first, each with the step from which it holds."""
        return list(_read_json(self.path / "changes.json").get("changes", ()))

    def fingerprints(self) -> dict[str, Any]:
        """Fingerprints of the model and of each source's prompts; empty where they cannot be read."""
        return _read_json(self.path / "sources.json")

    def result(self) -> dict[str, Any]:
        """Empty unless the run is complete."""
        return _read_json(self.path / "result.json")

    def stop_reason(self) -> str:
        """Why the run ended early; empty where it did not, or had no time to say so."""
        return str(_read_json(self.path / "stopped.json").get("reason", ""))

    def last_start(self) -> float:
        """Time of day when a run without a stop reason last began, which blanked its stop note; 0 if it has none."""
        try:
            return (self.path / "stopped.json").stat().st_mtime
        except OSError:
            return 0.0

    def has_torn_end(self) -> bool:
        """Whether the journal's last line was cut off while it was written."""
        if not self.journal.exists() or not self.journal.stat().st_size:
            return False  # its last segment was closed a moment ago
        with self.journal.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def quiet_s(self, wall: float) -> float:
        """Seconds of the wall clock since the journal last grew."""
        files = [self.journal] if self.journal.exists() else [closed_segments(self.journal)[-1].path]
        return max(wall - files[-1].stat().st_mtime, 0.0)


def _step(path: Path) -> int:
    number = path.name.removeprefix("step_")
    return int(number) if number.isdigit() else -1


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
