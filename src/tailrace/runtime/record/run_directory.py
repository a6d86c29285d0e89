"""The run directory: the files of a run, and whether a command may use the directory.

    config.json        the resolved settings; of a run that was continued, those of the last command
    changes.json       settings that were changed when the run was continued, and from which step on
    sources.json       fingerprints of the model, of every prompt set and of the files of reward functions
    journal.jsonl      every event and command; the older part of a long one in journal-N.jsonl.gz
    payload/           tokens, log-probs, versions and masks of responses that are still needed
    metrics.jsonl      one row per step and per evaluation
    checkpoints/step_N Hugging Face or PEFT format, the trainer's state, the core's; `latest` points at the newest
    logs/              output of each worker process
    inputs/            prompts and functions that a program handed over as objects
    stopped.json       why the run ended early
    result.json        written when the run is complete
    lengths.json       of a run that only generates and scores: the lengths of all responses

The same command again: a finished run shows its result, an unfinished one continues. Other settings are refused,
except those that ``config/continuation.py`` lists. With ``resume = "with-changes"`` it lists more, and a finished run
continues too, if anything changed.
A command that ends before its first event leaves nothing behind that was not there before.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tailrace.config.continuation import Difference, as_json, changed_evaluation, differences, fixed
from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.core.journal import OtherFormat
from tailrace.observe.journal.journal_file import DamagedJournal, check_format
from tailrace.observe.journal.journal_segments import end_of
from tailrace.runtime.record.stop_note import StopNote
from tailrace.sizing.fitting import FROM_CARD

REWARD_FILE = "file of reward function"
"""How the names of fingerprints of reward functions begin."""

_OURS = (
    "lock", "config.json", "sources.json", "journal.jsonl", "metrics.jsonl", "stopped.json", "payload", "checkpoints",
    "logs", "inputs", "tensorboard", "wandb",
)  # fmt: skip
"""Files that may appear in the directory before the first event."""


class RunDirectory:
    """Owns the paths and the lock. ``open`` only looks; ``begin`` makes it the directory of this run."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.config = self.path / "config.json"
        self.changed = self.path / "changes.json"
        self.sources = self.path / "sources.json"
        self.journal = self.path / "journal.jsonl"
        self.payload = self.path / "payload"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.logs = self.path / "logs"
        self.result = self.path / "result.json"
        self.stop_note = StopNote(self.path / "stopped.json")
        self.lengths = self.path / "lengths.json"
        self._lock: int | None = None
        self._missing: list[Path] = []
        """Folders that this command created, outermost first."""

    @classmethod
    def open(cls, settings: Settings) -> RunDirectory:
        """Open the directory; ``SettingsError`` with the reason if this run may not use it. Nothing is written yet."""
        directory = cls(settings.output_dir)
        try:
            with directory._explaining():
                directory._look()
                directory._compare(settings)
        except BaseException:  # whatever it was, the lock must not stay taken
            directory.close()
            raise
        return directory

    def add_inputs(self, inputs: Mapping[Path, bytes]) -> None:
        """Write the contents of objects that a program passed in. A file with the same name is replaced."""
        with self._explaining():
            for path, content in inputs.items():
                if not path.exists():
                    self._missing.append(path)
                    self._make_folders(path.parent)
                write_atomically(path, content)

    def begin(self, settings: Settings, fingerprints: Mapping[str, str]) -> None:
        """Make it the directory of this run, on these sources."""
        with self._explaining():
            self._compare_sources(settings, fingerprints)
            self._make_folders(self.payload, self.checkpoints, self.logs)
            if not self.has_begun:
                self._write(self.config, as_json(settings))
                self._write(self.sources, fingerprints)

    def keep_settings(self, settings: Settings, fingerprints: Mapping[str, str], *, next_step: int) -> None:
        """Write the settings and fingerprints that hold from ``next_step`` on. A run that is continued does it before
        its first event, because some of them may have changed."""
        # First: a finished run whose new settings are written already would look as if nothing were left to do.
        self.result.unlink(missing_ok=True)
        if changed := [
            {"setting": each.name, "value": each.value, "before": each.before}
            for each in self.differences(settings)
            if each.is_on_request
        ] + [{"source": name} for name in self.edited(fingerprints)]:
            noted = self._read(self.changed)["changes"] if self.changed.exists() else []
            self._write(self.changed, {"changes": [*noted, {"from_step": next_step, "changed": changed}]})
        self._write(self.config, as_json(settings))
        # Prompt sets that the run no longer has stay named: the same name must mean the same prompts.
        self._write(self.sources, {**self._stored_fingerprints(), **fingerprints})

    def close(self) -> None:
        if self._lock is not None and not self.has_begun:
            self._withdraw()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def has_begun(self) -> bool:
        """Whether a run in this directory has handled an event. If not, its settings may still change."""
        return end_of(self.journal) > 0

    def stored_settings(self) -> dict[str, Any] | None:
        """The settings of the last command that ran in this directory; None: the run has not begun."""
        return self._read(self.config) if self.has_begun else None

    def differences(self, settings: Settings) -> list[Difference]:
        """Settings that differ from those of the last command. A number that is left to the card is the one that the
        run began with."""
        found = differences(settings, self._read(self.config)) if self.has_begun else []
        return [each for each in found if each.value is not None or each.name not in FROM_CARD]

    def changed_evaluation(self, settings: Settings) -> set[str]:
        """Evaluation sets that are not as the run has had them, by name."""
        return changed_evaluation(settings, self.differences(settings))

    def changes(self, settings: Settings) -> list[str]:
        """Settings that differ from those of the last command and matter to the run, in words."""
        return [str(each) for each in self.differences(settings) if each.is_told]

    def check_sources(self, settings: Settings, fingerprints: Mapping[str, str]) -> None:
        """``SettingsError`` if a run that has begun here had another model, other prompts or other reward files."""
        self._compare_sources(settings, fingerprints)

    def edited(self, fingerprints: Mapping[str, str]) -> list[str]:
        """Sources whose content is not what the run began with. One that the run did not name is none of them."""
        theirs = self._stored_fingerprints()
        return sorted(name for name in fingerprints if theirs.get(name, fingerprints[name]) != fingerprints[name])

    def finished(self, settings: Settings) -> dict[str, Any] | None:
        """The result of a complete run; None if there is none, or if these settings ask for more."""
        asks_for_more = any(each.is_on_request for each in self.differences(settings))
        return self._read(self.result) if self.result.exists() and not asks_for_more else None

    def _look(self) -> None:
        """Check that the folders and files of a run can be created here; raise ``OSError`` if not."""
        place = self.path
        while not place.exists():
            self._missing.insert(0, place)
            place = place.parent
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self._missing += [path for name in _OURS if not (path := self.path / name).exists()]
        if (self.path / "lock").exists():
            self._take_lock()

    def _make_folders(self, *folders: Path) -> None:
        # Prompts, responses and weights are in it. One that exists keeps its mode.
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_lock()
        for folder in folders:
            folder.mkdir(exist_ok=True)

    def _take_lock(self) -> None:
        path = self.path / "lock"
        while self._lock is None:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise SettingsError(f"another process is running in {self.path}; wait for it, or end it") from None
            # Between opening and locking, its owner may have withdrawn and removed it: then it locks nothing.
            if path.exists() and path.stat().st_ino == os.fstat(lock).st_ino:
                self._lock = lock
            else:
                os.close(lock)

    def _withdraw(self) -> None:
        for path in reversed(self._missing):
            with suppress(OSError):  # somebody else put something there meanwhile: it stays
                if path == self.path or path in self.path.parents:
                    path.rmdir()
                elif path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def _compare(self, settings: Settings) -> None:
        """Refuse to continue a run with other settings than it began with."""
        if not self.has_begun:
            return
        if settings.resume == "never":
            raise SettingsError(f"{self.path} already holds a run and resume is 'never'; choose another output_dir")
        try:
            check_format(self.journal)
        except OtherFormat as error:
            raise SettingsError(str(error)) from None
        except DamagedJournal:
            pass  # the run says so when it reads its past
        different = fixed(settings, self.differences(settings))
        if refused := [each for each in different if not (each.is_on_request and settings.resume == "with-changes")]:
            advice = "choose another output_dir, or remove that one"
            if all(each.is_on_request for each in refused):
                advice = f"to continue it with these, add --resume with-changes; or {advice}"
            names = ", ".join(each.label for each in refused)
            raise SettingsError(f"{self.path} holds a run with other settings ({names}); {advice}")

    def _compare_sources(self, settings: Settings, fingerprints: Mapping[str, str]) -> None:
        """Refuse to continue a run with another model, other prompts or edited rewards."""
        edited = self.edited(fingerprints)
        rewards = [name for name in edited if name.startswith(REWARD_FILE)]
        if changed := [name for name in edited if name not in rewards or settings.resume != "with-changes"]:
            advice = "choose another output_dir"
            if changed == rewards:
                file = "the edited file" if len(changed) == 1 else "the edited files"
                advice = f"to continue with {file}, add --resume with-changes; or {advice}"
            elif set(changed) <= {f"prompts of '{each.name}'" for each in settings.eval}:
                advice = "give the evaluation set with other prompts another name"
            what = " and the ".join(changed)
            raise SettingsError(f"the {what} changed since the run in {self.path} began; {advice}")

    def _stored_fingerprints(self) -> dict[str, Any]:
        return self._read(self.sources) if self.has_begun else {}

    def _write(self, path: Path, content: object) -> None:
        write_atomically(path, json.dumps(content, indent=2) + "\n")

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return dict(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path} cannot be read ({error}); choose another output_dir") from None

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise SettingsError(f"cannot use output_dir {self.path}: {reason}; choose another output_dir") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that after a crash it has either the old or the new content."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
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
