"""The run directory: where everything about a run lies, and whether a command may use it.

    config.json        the resolved settings
    sources.json       fingerprints of the model and of every prompt set
    journal.jsonl      every event and command
    payload/           tokens, log-probs, versions and masks of responses that are still needed
    metrics.jsonl      one row per step and per evaluation
    checkpoints/step_N Hugging Face or PEFT format, the trainer's state, the core's; `latest` points at the newest
    logs/              output of each worker process
    result.json        written when the run is complete

The same command again: a finished run shows its result, an unfinished one continues, other settings are refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings

_NOT_COMPARED = (
    "output_dir", "resume", "limits", "keep_checkpoints", "keep_rollouts", "logger", "project_name", "experiment_name",
)  # fmt: skip
"""What may differ when a run is continued: none of it changes what is computed."""


class RunDirectory:
    """Owns the paths and the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config = self.path / "config.json"
        self.sources = self.path / "sources.json"
        self.journal = self.path / "journal.jsonl"
        self.payload = self.path / "payload"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.result = self.path / "result.json"
        self._lock: int | None = None

    @classmethod
    def open(cls, settings: Settings) -> RunDirectory:
        """Take the directory for this run, or raise ``SettingsError`` with the reason why not."""
        directory = cls(settings.output_dir)
        try:
            for folder in (directory.path, directory.payload, directory.checkpoints, directory.logs):
                folder.mkdir(parents=True, exist_ok=True)
            directory._take_lock()
            directory._claim(settings)
        except OSError as error:
            raise SettingsError(f"cannot use output_dir {settings.output_dir}: {error.strerror}") from None
        return directory

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def has_begun(self) -> bool:
        """Whether anything was decided here; settings that never got that far bind nobody."""
        return self.journal.exists() and self.journal.stat().st_size > 0

    def finished(self) -> dict[str, Any] | None:
        """The result of a complete run."""
        return json.loads(self.result.read_text()) if self.result.exists() else None

    def claim_sources(self, fingerprints: dict[str, str]) -> None:
        """Refuse to continue a run with another model or other prompts than it began with."""
        if self.has_begun and self.sources.exists():
            theirs = json.loads(self.sources.read_text())
            if changed := sorted(name for name in fingerprints if fingerprints[name] != theirs.get(name)):
                what = " and the ".join(changed)
                raise SettingsError(f"the {what} changed since the run in {self.path} began; choose another output_dir")
        write_atomically(self.sources, json.dumps(fingerprints, indent=2) + "\n")

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise SettingsError(f"another process is running in {self.path}; wait for it, or end it") from None

    def _claim(self, settings: Settings) -> None:
        mine = json.loads(settings.model_dump_json())
        if not self.has_begun:
            write_atomically(self.config, json.dumps(mine, indent=2) + "\n")
            return
        if settings.resume == "never":
            raise SettingsError(f"{self.path} already holds a run and resume is 'never'; choose another output_dir")
        theirs = json.loads(self.config.read_text())
        if different := sorted(_differences(mine, theirs)):
            raise SettingsError(
                f"{self.path} holds a run with other settings ({', '.join(different)});"
                " choose another output_dir, or remove that one"
            )


class Checkpoints:
    """Complete checkpoints by version. A directory appears under its name only when all of it is on disk."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def begin(self, version: int) -> Path:
        """An empty directory to write a checkpoint into."""
        for leftover in self._folder.glob("*.partial"):
            shutil.rmtree(leftover)
        partial = self._folder / f"step_{version}.partial"
        partial.mkdir()
        return partial

    def complete(self, version: int, state: dict[str, Any]) -> Path:
        """Add the core's state and make the checkpoint appear."""
        partial, final = self._folder / f"step_{version}.partial", self._folder / f"step_{version}"
        write_atomically(partial / "run_state.json", json.dumps(state))
        if final.exists():
            final.rename(final.with_suffix(".old"))
        partial.rename(final)
        _point(self._folder / "latest", final.name)
        sync_directory(self._folder)
        self._tidy()
        for old in self._versions()[: -self._keep]:
            shutil.rmtree(self._folder / f"step_{old}")
        return final

    def repair(self) -> None:
        """Finish what a death in the middle of ``complete`` left undone."""
        for old in self._folder.glob("*.old"):
            if not old.with_suffix("").exists():
                old.rename(old.with_suffix(""))
        self._tidy()
        if (newest := self.latest()) is not None:
            _point(self._folder / "latest", newest.name)

    def _tidy(self) -> None:
        for old in self._folder.glob("*.old"):
            shutil.rmtree(old)

    def latest(self) -> Path | None:
        versions = self._versions()
        return self._folder / f"step_{versions[-1]}" if versions else None

    def _versions(self) -> list[int]:
        names = [path.name.removeprefix("step_") for path in self._folder.glob("step_*")]
        return sorted(int(name) for name in names if name.isdigit())


def write_atomically(path: Path, text: str) -> None:
    """The file holds either the old text or the new one, whenever the process or machine dies."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _point(link: Path, target: str) -> None:
    draft = link.with_name("latest.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)


def _differences(mine: Any, theirs: Any, name: str = "") -> list[str]:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        keys = [key for key in mine.keys() | theirs.keys() if name or key not in _NOT_COMPARED]
        prefix = f"{name}." if name else ""
        return [found for key in keys for found in _differences(mine.get(key), theirs.get(key), prefix + key)]
    return [] if mine == theirs else [name]
