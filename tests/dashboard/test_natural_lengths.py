"""A run that stops long responses early is told so by the doctor and sees it in its report."""

from __future__ import annotations

from pathlib import Path

from observe.runs import write_journal
from observe.speculation import speculative_run
from tailrace.core.schedule import Leftovers
from tailrace.dashboard.doctor import examine
from tailrace.dashboard.report import write_report


def test_launching_six_for_four_is_a_finding_of_the_doctor_and_a_table_of_the_report(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", speculative_run(Leftovers.DROP, 6))
    (finding,) = examine(run).findings
    assert finding.subject == "lengths"
    assert "long responses are missing from training" in finding.what
    assert "over_provision" in finding.suggestion
    page = write_report(run).read_text(encoding="utf-8")
    assert "natural (Kaplan-Meier)" in page
    assert finding.what in page
    assert "Share of responses longer than" in page


def test_a_run_without_speculation_has_nothing_to_be_told(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", speculative_run(Leftovers.WAIT, 4))
    assert examine(run).findings == ()
    assert "Every generated response was trained on." in write_report(run).read_text(encoding="utf-8")
