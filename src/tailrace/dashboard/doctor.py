"""``tailrace doctor``: look at a run without touching it, name what is wrong, suggest one thing for each.

Works on a run that goes on (also from another terminal), on one that stopped and on a finished one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tailrace.dashboard import machine
from tailrace.dashboard.checks import CHECKS
from tailrace.dashboard.diagnosis import FINISHED, RUNNING, STOPPED, Diagnosis, ExaminedRun
from tailrace.observe import summaries
from tailrace.observe.account import MISFITS, Account
from tailrace.observe.display.progress import clock
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.disk import says_disk_full
from tailrace.observe.journal.journal_segments import end_of
from tailrace.observe.journal.recollection import Recollection, recollect
from tailrace.observe.journal.run_files import RunFiles
from tailrace.store import checkpoint_files

_LOG_END_BYTES = 65536


def examine(run: Path, *, wall: float | None = None) -> Diagnosis:
    """Examine the run in this directory; ``ValueError`` if there is none. ``wall``: seconds, as of ``time.time``."""
    examined = _read(RunFiles.find(run), time.time() if wall is None else wall)
    findings = tuple(finding for check in CHECKS for finding in check(examined))
    return Diagnosis(run=examined, headline=_headline(examined), findings=findings)


def _read(files: RunFiles, wall: float) -> ExaminedRun:
    # A run that goes on writes while this reads: all that is said here is about the journal up to one position.
    is_alive, until, quiet_s = files.is_alive(), end_of(files.journal), files.quiet_s(wall)
    account, memory, problem = _remember(files, until)
    is_complete = bool(files.result().get("is_complete")) or bool(account.finish and account.finish.is_complete)
    life = RUNNING if is_alive else FINISHED if is_complete else STOPPED
    checkpoints = files.checkpoints()
    found = [(path, checkpoint_files.damage(path)) for path in checkpoints]
    # One that is gone by now was not damaged: a run that goes on removes its oldest.
    damaged = [(path.name, what) for path, what in found if what and path.exists()]
    return ExaminedRun(
        path=str(files.path),
        life=life,
        account=account,
        memory=memory,
        memory_problem=problem,
        now=account.now + (quiet_s if is_alive else 0.0),
        machine=machine.read(files.path),
        checkpoint_bytes=machine.folder_bytes(checkpoints[-1]) if checkpoints else 0,
        damaged=tuple(damaged),
        num_whole_checkpoints=len(checkpoints) - len(damaged),
        has_torn_end=files.has_torn_end() and not is_alive,
        log_complaint=_log_complaint(files),
        stop_reason=account.why_it_stopped(files.stop_reason()),
        reward=files.config().get("reward", {}),
    )


def _remember(files: RunFiles, until: int) -> tuple[Account, Recollection | None, str]:
    (account, position), problem = summaries.start(files), ""
    try:
        with summaries.without_collection():
            account.follow(entry for _, entry in journal_file.read(files.journal, position, until=until))
        return account, recollect(files, until=until), problem
    except MISFITS as error:
        # Whatever a damaged journal makes the core say is what the person should read.
        return account, None, f"{type(error).__name__}: {error}"


def _log_complaint(files: RunFiles) -> str:
    """Logs are appended to at every start: one that has been silent since the last speaks of the past."""
    for path in sorted(files.logs.glob("*.log")):
        # What reward functions and tested programs print is about their own files, and their failures end no run.
        if path.name.startswith(("reward-", "tests-")) or path.stat().st_mtime < files.last_start():
            continue
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _LOG_END_BYTES, 0))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        for line in reversed(lines):
            if says_disk_full(line):
                return f"{path.name}: {line.strip()}"
    return ""


def _headline(run: ExaminedRun) -> str:
    account = run.account
    where = f"{account.so_far}, {clock(account.now - account.began)} of run time"
    if run.life == FINISHED:
        return f"the run is finished: {where}"
    if run.life == RUNNING:
        return f"the run goes on: {where}; its journal grew {run.now - account.now:.0f} s ago"
    return f"the run has stopped: {where}"


def lines(diagnosis: Diagnosis) -> list[str]:
    """For a terminal."""
    run = diagnosis.run
    text = [diagnosis.headline]
    for wait in run.waits:
        text.append(f"  waiting for {wait.what}: {run.now - wait.since:.0f} s (limit {wait.limit_s:.0f} s)")
    for finding in diagnosis.findings:
        text += ["", f"{finding.subject}: {finding.what}", f"  -> {finding.suggestion}"]
    if not diagnosis.findings:
        text += ["", "nothing is wrong"]
    text += ["", *_facts(run)]
    return text


def _facts(run: ExaminedRun) -> list[str]:
    box = run.machine
    idle = "  ".join(
        f"{lane.name} {lane.idle_s:.1f} s ({lane.idle_ratio:.0%})" for lane in run.account.timeline.lanes()
    )
    available, total = box.memory_available, box.memory_total
    memory = "?" if available is None or total is None else f"{available / 1e9:.1f} of {total / 1e9:.1f} GB"
    versions = "  ".join(f"{name} {number}" for name, number in box.versions.items() if number != "not installed")
    return [
        f"idle      {idle}",
        f"disk      {box.disk_free / 1e9:.1f} of {box.disk_total / 1e9:.1f} GB free",
        f"memory    {memory} available",
        f"versions  {versions}",
    ]


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """For a program."""
    run, box = diagnosis.run, diagnosis.run.machine
    return {
        "run": run.path,
        "state": run.life,
        "headline": diagnosis.headline,
        "step": run.account.version,
        "waits": [{"what": w.what, "age_s": round(run.now - w.since, 3), "limit_s": w.limit_s} for w in run.waits],
        "findings": [{"subject": f.subject, "what": f.what, "suggestion": f.suggestion} for f in diagnosis.findings],
        "idle_s": {lane.name: lane.idle_s for lane in run.account.timeline.lanes()},
        "disk": {"free": box.disk_free, "total": box.disk_total},
        "memory": {"available": box.memory_available, "total": box.memory_total},
        "versions": box.versions,
    }
