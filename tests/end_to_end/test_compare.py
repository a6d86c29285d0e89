"""A whole `tailrace compare`: stopped in its second schedule, taken up by the same command, and looked at."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dashboard.test_report import Page
from end_to_end import launch
from tailrace.cli.main import main
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.journal.journal_file import read
from tailrace.observe.schedules.comparison import Compared, costs, lessons, table

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
NAMES = ("sync", "tail-batching")
FIGURES = (
    "wall_s", "seconds_per_step", "speed_up", "tokens_generated", "tokens_trained", "tokens_wasted", "bubble_share",
    "rollout_tokens_per_s", "staleness_mean", "staleness_max", "staleness_violations", "reward_first", "reward_last",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    folder: Path
    stop_code: int
    first_journal: bytes
    """Of the schedule that was finished when the comparison was stopped."""
    said: str
    """By the second command."""
    rows: dict[str, Any]

    def journal(self, name: str) -> list[Entry]:
        return [entry for _, entry in read(self.folder / name / "journal.jsonl")]

    @property
    def results(self) -> list[Compared]:
        return [Compared.of(name, self.journal(name)) for name in NAMES]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("compared")
    command = launch.command(folder, schedule__max_steps=6, eval_interval=1000)
    command[command.index("train")] = "compare"
    command += ["--schedules", ",".join(NAMES), "--json", str(folder / "figures.json")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    second = folder / NAMES[1] / "journal.jsonl"
    launch.wait_until(process, lambda: second.exists() and b'"StepTrained"' in second.read_bytes())
    process.send_signal(signal.SIGTERM)
    stop_code = process.wait(timeout=100)
    first_journal = (folder / NAMES[0] / "journal.jsonl").read_bytes()
    again = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert again.returncode == 0, again.stdout + again.stderr
    rows = {row["schedule"]: row for row in json.loads((folder / "figures.json").read_text())}
    return Comparison(
        folder=folder, stop_code=stop_code, first_journal=first_journal, said=again.stdout, rows=rows
    )  # fmt: skip


def test_what_was_finished_is_not_run_again_and_what_was_stopped_goes_on(comparison: Comparison) -> None:
    assert comparison.stop_code == 1
    assert (comparison.folder / "sync" / "journal.jsonl").read_bytes() == comparison.first_journal
    assert "== sync\nthis run is finished: 6 steps are done" in comparison.said
    events = [type(entry.event) for entry in comparison.journal("tail-batching")]
    assert events.count(ev.RunResumed) == 1
    assert events.count(ev.StepTrained) == 6
    assert events.index(ev.StepTrained) < events.index(ev.RunResumed)


def test_every_figure_is_in_the_file_and_is_that_of_the_journal(comparison: Comparison) -> None:
    assert list(comparison.rows) == list(NAMES)
    for result in comparison.results:
        row = comparison.rows[result.schedule]
        assert set(FIGURES) <= set(row)
        assert row == json.loads(json.dumps(result.to_dict(comparison.results[0])))
        assert set(row["accuracy"]) == {"heldout"}
        assert row["num_steps"] == 6
        assert row["prompts"]["adds_up"]
    assert comparison.rows["sync"]["speed_up"] == 1.0


def test_the_pause_and_the_second_start_are_in_no_figure(comparison: Comparison) -> None:
    entries = comparison.journal("tail-batching")
    resumed = next(number for number, entry in enumerate(entries) if isinstance(entry.event, ev.RunResumed))
    works = (do.Submit, do.Accumulate)
    goes_on = next(entry.now for entry in entries[resumed:] if any(isinstance(c, works) for c in entry.commands))
    pause_s = goes_on - entries[resumed - 1].now
    row = comparison.rows["tail-batching"]
    assert row["wall_s"] == pytest.approx(entries[-1].now - entries[0].now - pause_s)
    submitted = next(e.now for e in entries if any(isinstance(c, do.Submit) for c in e.commands))
    assert row["seconds_per_step"] * row["num_steps"] <= entries[-1].now - submitted - pause_s


def test_the_table_and_the_page_show_the_same(comparison: Comparison) -> None:
    results = comparison.results
    for row in table(results):
        assert row[0] in comparison.said
        assert all(cell in comparison.said for cell in row)
    page = Page((comparison.folder / "compare.html").read_text())
    for row in (*costs(results), *lessons(results)):
        assert " ".join(row) in page.words
    assert {"chart-timeline-0", "chart-timeline-1"} <= page.ids
    for fact in ("recipe quickstart", "seed 0", "machine", "tail-batching was interrupted"):
        assert fact in page.words


def test_a_run_of_it_is_simulated_under_another_schedule(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(comparison.folder / "sync" / "journal.jsonl"), "--schedule", "one-step"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["recorded", "simulated", "one-step"]
