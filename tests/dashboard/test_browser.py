"""The page in a real browser, where one is installed: everything is drawn and nothing is complained about."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from core.world import World
from dashboard.reward_runs import three_parts
from dashboard.test_report import Page, crashed, finished
from observe.runs import write_journal
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.dashboard.report import write_report
from tailrace.observe.account import Account

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")]


def long_run() -> World:
    world = World(Schedule(train_source="train", batch_size=1, group_size=2, max_steps=500), random.Random(2))
    world.run()
    return world


def browse(page: Path, profile: Path, *, is_dark: bool) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what was written to the console.

    A busy machine may draw fewer frames in the time that the page is given, so an unfinished page gets more of it.
    """
    for seconds in (8, 30, 120):
        text, console = _browse(page, profile, is_dark, seconds)
        if "data-complete-ms" in text:
            break
    return text, console


def _browse(page: Path, profile: Path, is_dark: bool, seconds: int) -> tuple[str, list[str]]:
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
            "--enable-logging=stderr", "--window-size=1366,768", f"--virtual-time-budget={seconds}000",
            f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", "--dump-dom", page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )  # fmt: skip
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


@pytest.mark.parametrize(
    ("world", "num_charts", "is_dark"),
    [
        (finished, 7, False),
        (finished, 7, True),
        (crashed, 7, False),
        (three_parts, 8, True),
        pytest.param(long_run, 6, True, marks=pytest.mark.long),
    ],
    ids=["finished-light", "finished-dark", "crashed-light", "three-parts-dark", "500-steps-dark"],
)
def test_every_chart_is_drawn_without_a_complaint(
    tmp_path: Path, world: object, num_charts: int, is_dark: bool
) -> None:
    entries: list[Entry] = world().entries  # type: ignore[operator]
    path = write_report(write_journal(tmp_path / "run", entries))
    text, console = browse(path, tmp_path / "profile", is_dark=is_dark)
    assert text.count('class="bk-Figure') == num_charts
    assert "data-complete-ms" in text
    assert console == []
    lanes = Account.of(entries).timeline.lanes()
    assert Page(text).idle == pytest.approx({lane.name: lane.idle_s for lane in lanes}, abs=1e-6)
