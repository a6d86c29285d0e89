"""What a command would do with the run that its ``output_dir`` holds. Nothing here writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.journal import OtherFormat
from tailrace.core.schedule import Schedule
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_file import DamagedJournal
from tailrace.observe.journal.recollection import first_entry, schedule_at
from tailrace.observe.journal.run_files import RunFiles
from tailrace.runtime.record.change_of_course import change_of_course
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.run_directory import RunDirectory

_NOT_OF_THE_RUN = ("output_dir", "resume")
"""Settings that every command gives anew."""


def directory_lines(directory: RunDirectory, settings: Settings, schedule: Schedule) -> list[str]:
    """What the command would do in this directory. ``SettingsError`` if the run in it cannot be continued so.

    ``schedule``: that of the settings.
    """
    path = directory.path
    if (finished := directory.finished(settings)) is not None:
        return [f"run directory: {path} holds a finished run ({finished['reason']}); the command would show its result"]
    if not holds_run(directory):
        is_new = not path.exists()
        return [f"run directory: {path}, {'which will be made' if is_new else 'which holds no run yet'}"]
    reason, left = RunFiles.find(path).stop_reason(), _as_left(directory)
    changed = change_of_course(directory, settings, version=left.version, before=left.schedule, schedule=schedule)
    return [
        f"run directory: {path} holds an unfinished run{f' ({reason})' if reason else ''}",
        f"  the command would continue it {left.where()}",
        *(f"  {change}" for change in (*directory.changes(settings), *changed)),
    ]


def difference_lines(settings: Settings) -> list[str]:
    """The settings that differ from those of the run in ``output_dir``; empty if there is none."""
    try:
        found = RunDirectory(settings.output_dir).differences(settings)
    except SettingsError:
        return []
    return [str(each) for each in found if each.name not in _NOT_OF_THE_RUN]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeftRun:
    """A run as it was left."""

    checkpoint: Path | None
    version: Version
    """Optimizer steps that it has taken."""
    steps: list[Version]
    """Optimizer steps that the checkpoint does not cover."""
    schedule: Schedule

    def where(self) -> str:
        """Where it would be continued, in words."""
        start = "from its beginning" if self.checkpoint is None else f"from checkpoint {self.checkpoint.name}"
        if not (steps := self.steps):
            return start
        kept = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        return f"after step {steps[-1]}: {start}, {kept} repeated with the responses on disk"


def holds_run(directory: RunDirectory) -> bool:
    """Whether there is a run to continue. One whose first journal entry was not written whole is started anew."""
    try:
        return directory.has_begun and first_entry(directory.journal) is not None
    except (DamagedJournal, OtherFormat) as error:
        raise SettingsError(f"{error}; start in another output_dir") from None


def _as_left(directory: RunDirectory) -> _LeftRun:
    checkpoints = CheckpointFolder(directory.checkpoints, keep=1)
    checkpoints.refuse_damaged()
    checkpoint = checkpoints.latest()
    state = {} if checkpoint is None else json.loads((checkpoint / "run_state.json").read_text())
    version, steps = Version(state.get("version", 0)), set[Version]()
    try:
        schedule = schedule_at(directory.journal, state)
        for _, entry in journal_file.read(directory.journal, int(state.get("journal_size", 0))):
            if isinstance(entry.event, ev.StepTrained):
                steps.add(entry.event.version)
            elif isinstance(entry.event, ev.RunResumed):
                schedule = entry.event.schedule or schedule
    except (DamagedJournal, OtherFormat) as error:
        raise SettingsError(f"{error}; start in another output_dir") from None
    return _LeftRun(checkpoint=checkpoint, version=max({version, *steps}), steps=sorted(steps), schedule=schedule)
