"""What a command would do with the run that its ``output_dir`` holds. Nothing here writes."""

from __future__ import annotations

import json
from pathlib import Path

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.journal import OtherFormat
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_file import DamagedJournal
from tailrace.observe.journal.run_files import RunFiles
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.run_directory import RunDirectory

_NOT_OF_THE_RUN = ("output_dir", "resume")
"""Settings that every command gives anew."""


def directory_lines(directory: RunDirectory, settings: Settings) -> list[str]:
    """What the command would do in this directory. ``SettingsError`` if the run in it cannot be continued."""
    path = directory.path
    if (finished := directory.finished(settings)) is not None:
        return [f"run directory: {path} holds a finished run ({finished['reason']}); the command would show its result"]
    if not directory.has_begun:
        is_new = not path.exists()
        return [f"run directory: {path}, {'which will be made' if is_new else 'which holds no run yet'}"]
    files = RunFiles.find(path)
    reason = files.stop_reason()
    return [
        f"run directory: {path} holds a run that has begun{f' and ended early: {reason}' if reason else ''}",
        f"  the command would continue it {_from_where(directory)}",
        *(f"  {change}" for change in directory.changes(settings)),
    ]


def difference_lines(settings: Settings) -> list[str]:
    """The settings that differ from those of the run in ``output_dir``; empty if there is none."""
    try:
        found = RunDirectory(settings.output_dir).differences(settings)
    except SettingsError:
        return []
    return [str(each) for each in found if each.name not in _NOT_OF_THE_RUN]


def _from_where(directory: RunDirectory) -> str:
    checkpoints = CheckpointFolder(directory.checkpoints, keep=1)
    checkpoints.refuse_damaged()
    checkpoint = checkpoints.latest()
    steps = _steps_after(directory.journal, checkpoint)
    start = "from its beginning" if checkpoint is None else f"from checkpoint {checkpoint.name}"
    if not steps:
        return start
    kept = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    return f"after step {steps[-1]}: {start}, {kept} repeated with the responses on disk"


def _steps_after(journal: Path, checkpoint: Path | None) -> list[Version]:
    """Optimizer steps in the journal that the checkpoint does not cover, counted from 1."""
    position = 0
    if checkpoint is not None:
        position = int(json.loads((checkpoint / "run_state.json").read_text())["journal_size"])
    try:
        events = (entry.event for _, entry in journal_file.read(journal, position))
        return sorted({event.version for event in events if isinstance(event, ev.StepTrained)})
    except (DamagedJournal, OtherFormat) as error:
        raise SettingsError(f"{error}; start in another output_dir") from None
