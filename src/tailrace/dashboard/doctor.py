"""``tailrace doctor``: look at a run without touching it, name what is wrong, suggest one thing for each.

Works on a run that goes on (also from another terminal), on one that stopped and on a finished one.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tailrace.dashboard import machine
from tailrace.dashboard.checks import CHECKS
from tailrace.dashboard.diagnosis import FINISHED, RUNNING, STOPPED, Diagnosis, Patient
from tailrace.observe import journal_file
from tailrace.observe.account import MISFITS, Account
from tailrace.observe.disk import says_disk_full
from tailrace.observe.progress import clock
from tailrace.observe.recollection import Recollection, recollect
from tailrace.observe.run_files import RunFiles
from tailrace.store import checkpoint_files

_LOG_END_BYTES = 65536


def examine(run: Path, *, wall: float | None = None) -> Diagnosis:
    """``ValueError`` where there is no run. ``wall`` is the time of day, as ``time.time`` gives it."""
    files = RunFiles.find(run)
    patient = _admit(files, time.time() if wall is None else wall)
    findings = tuple(finding for check in CHECKS for finding in check(patient))
    return Diagnosis(patient=patient, headline=_headline(patient), findings=findings)


def _admit(files: RunFiles, wall: float) -> Patient:
    is_alive, quiet_s = files.is_alive(), files.quiet_s(wall)
    account, memory, problem = _remember(files)
    is_complete = bool(files.result().get("is_complete")) or bool(account.finish and account.finish.is_complete)
    life = RUNNING if is_alive else FINISHED if is_complete else STOPPED
    checkpoints = files.checkpoints()
    found = [(path, checkpoint_files.damage(path)) for path in checkpoints]
    # One that is gone by now was not damaged: a run that goes on removes its oldest.
    damaged = [(path.name, what) for path, what in found if what and path.exists()]
    timeout_s = files.config().get("reward", {}).get("timeout_s")
    return Patient(
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
        reward_timeout_s=float(timeout_s) if isinstance(timeout_s, int | float) else None,
    )


def _remember(files: RunFiles) -> tuple[Account, Recollection | None, str]:
    account, problem = Account(), ""
    try:
        account.follow(entry for _, entry in journal_file.read(files.journal))
        return account, recollect(files), problem
    except MISFITS as error:
        # Whatever a damaged journal makes the core say is what the person should read.
        return account, None, f"{type(error).__name__}: {error}"


def _log_complaint(files: RunFiles) -> str:
    """Logs are appended to at every start: one that has been silent since the last speaks of the past."""
    for path in sorted(files.logs.glob("*.log")):
        # What a reward function prints is about its own files, and its failures do not end a run.
        if path.name.startswith("reward-") or path.stat().st_mtime < files.last_start():
            continue
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _LOG_END_BYTES, 0))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        for line in reversed(lines):
            if says_disk_full(line):
                return f"{path.name}: {line.strip()}"
    return ""


def _headline(patient: Patient) -> str:
    account = patient.account
    where = f"{account.so_far}, {clock(account.now - account.began)} of run time"
    if patient.life == FINISHED:
        return f"the run is finished: {where}"
    if patient.life == RUNNING:
        return f"the run goes on: {where}; its journal grew {patient.now - account.now:.0f} s ago"
    return f"the run has stopped: {where}"


def lines(diagnosis: Diagnosis) -> list[str]:
    """For a terminal."""
    patient = diagnosis.patient
    text = [diagnosis.headline]
    for wait in patient.waits:
        text.append(f"  waiting for {wait.what}: {patient.now - wait.since:.0f} s (limit {wait.limit_s:.0f} s)")
    for finding in diagnosis.findings:
        text += ["", f"{finding.subject}: {finding.what}", f"  -> {finding.suggestion}"]
    if not diagnosis.findings:
        text += ["", "nothing is wrong"]
    text += ["", *_facts(patient)]
    return text


def _facts(patient: Patient) -> list[str]:
    box = patient.machine
    idle = "  ".join(
        f"{lane.name} {lane.idle_s:.1f} s ({lane.idle_ratio:.0%})" for lane in patient.account.timeline.lanes()
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
    patient, box = diagnosis.patient, diagnosis.patient.machine
    return {
        "run": patient.path,
        "state": patient.life,
        "headline": diagnosis.headline,
        "step": patient.account.version,
        "waits": [
            {"what": w.what, "age_s": round(patient.now - w.since, 3), "limit_s": w.limit_s} for w in patient.waits
        ],
        "findings": [{"subject": f.subject, "what": f.what, "suggestion": f.suggestion} for f in diagnosis.findings],
        "idle_s": {lane.name: lane.idle_s for lane in patient.account.timeline.lanes()},
        "disk": {"free": box.disk_free, "total": box.disk_total},
        "memory": {"available": box.memory_available, "total": box.memory_total},
        "versions": box.versions,
    }
