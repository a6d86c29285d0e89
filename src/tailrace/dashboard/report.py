"""From a run directory to its ``report.html``. Reads only; the run may be going on."""

from __future__ import annotations

from pathlib import Path

from tailrace.dashboard import page, samples
from tailrace.observe import journal_file
from tailrace.observe.account import Account
from tailrace.observe.run_files import RunFiles


def write_report(run: Path, output: Path | None = None) -> Path:
    """Write the page and return its path; ``ValueError`` if there is no run to show."""
    files = RunFiles.find(run)
    account = Account.of(entry for _, entry in journal_file.read(files.journal))
    if not account.num_entries:
        raise ValueError(f"{files.journal} holds no complete entry")
    text = page.render(
        files.path.name,
        account,
        is_alive=files.is_alive(),
        samples=samples.load(files, account.fates),
        config=files.config(),
    )
    path = output or files.path / "report.html"
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)  # a page that is open in a browser is never half a page
    return path
