"""Writes ``report.html`` from a run directory. It changes nothing else; the run may be going on."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tailrace.dashboard import page, samples
from tailrace.observe import summaries
from tailrace.observe.account import MISFITS, Account, Unfollowable
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.recollection import Recollection, recollect
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.schedules import advice
from tailrace.policies.strategies import policies_of


def write_report(run: Path, output: Path | None = None) -> Path:
    """Write the page and return its path; ``ValueError`` if there is no run to show, or none that can be followed."""
    files = RunFiles.find(run)
    account = _account(files)
    if not account.num_entries:
        raise ValueError(f"{files.journal} holds no complete entry")
    text = page.render(
        files.path.name,
        account,
        is_alive=files.is_alive(),
        stop_note=files.stop_reason(),
        samples=samples.load(files, account.fates),
        config=files.config(),
        memory=_memory(files, account),
        changes=files.changes(),
        advice=advice.read(files.path),
    )
    path = output or files.path / "report.html"
    _put(text, path)
    return path


def _account(files: RunFiles) -> Account:
    account, position = summaries.start(files)
    try:
        with summaries.without_collection():
            account.follow(entry for _, entry in journal_file.read(files.journal, position))
        return account
    except (journal_file.DamagedJournal, Unfollowable) as error:
        raise ValueError(
            f"the journal cannot be followed: {error}; `tailrace doctor {files.path}` says more"
        ) from error


def _memory(files: RunFiles, account: Account) -> Recollection | None:
    """The core's state, if it has learned limits of test cases."""
    schedule = account.schedule
    if schedule is None or not policies_of(schedule).timeouts.learns:
        return None
    try:
        return recollect(files)
    except MISFITS:
        return None  # a page without limits is better than none; the doctor names what does not fit


def _put(text: str, path: Path) -> None:
    """Write the whole page or nothing, so that a browser never shows half a page."""
    draft = path.with_name(path.name + ".draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
