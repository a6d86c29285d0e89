"""From a run directory to its ``report.html``. Reads only; the run may be going on."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tailrace.dashboard import page, samples
from tailrace.observe import journal_file
from tailrace.observe.account import Account, Unfollowable
from tailrace.observe.run_files import RunFiles


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
    )
    path = output or files.path / "report.html"
    _put(text, path)
    return path


def _account(files: RunFiles) -> Account:
    try:
        return Account.of(entry for _, entry in journal_file.read(files.journal))
    except (journal_file.DamagedJournal, Unfollowable) as error:
        raise ValueError(
            f"the journal cannot be followed: {error}; `tailrace doctor {files.path}` says more"
        ) from error


def _put(text: str, path: Path) -> None:
    """Whole or not at all: a page that is open in a browser is never half a page."""
    draft = path.with_name(path.name + ".draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
