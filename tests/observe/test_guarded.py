"""What only observes a run is switched off by its first error, and the run goes on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from observe.test_progress import ROW
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.observe.display.display import PlainDisplay
from tailrace.observe.display.safe_display import SafeDisplay
from tailrace.observe.guarded import RAISE_VARIABLE, Complaints, Guarded
from tailrace.observe.metrics.rows import Row
from tailrace.observe.shared_fold.run_fold import RunFold


class Told:
    """Collects complaints."""

    def __init__(self) -> None:
        self.complaints: list[tuple[str, str]] = []

    def __call__(self, part: str, error: Exception) -> None:
        self.complaints.append((part, repr(error)))


class Breaking:
    """A display that breaks in each of its methods from ``breaks`` on."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.breaks, self.is_closed = False, False

    def say(self, line: str) -> None:
        self._break()

    def begin(self, run: RunFold, rows: Sequence[Row]) -> None:
        self._break()

    def entry(self, entry: Entry) -> None:
        self._break()

    def row(self, row: Row) -> None:
        self._break()
        self.rows.append(row)

    def waits(self, waits: Sequence[Wait], now: float) -> None:
        self._break()

    def close(self) -> None:
        self.is_closed = True
        self._break()

    def _break(self) -> None:
        if self.breaks:
            raise KeyError("train:0:1:0:0")


def test_the_first_error_of_an_observer_switches_it_off_and_is_told_once() -> None:
    told, left, asked = Told(), list[str](), list[int]()
    guarded = Guarded("metrics", lambda: "observer", told, leave=left.append)
    assert guarded.ask(len) == 8
    guarded.tell(lambda observer: 1 / 0)
    guarded.tell(lambda observer: asked.append(1))
    assert guarded.ask(len) is None
    assert told.complaints == [("metrics", "ZeroDivisionError('division by zero')")]
    assert (guarded.is_on, asked, left) == (False, [], ["observer"])


def test_an_observer_that_cannot_be_made_is_off_from_the_start() -> None:
    told = Told()
    guarded: Guarded[int] = Guarded("metrics", lambda: int("x"), told)
    guarded.tell(print)
    assert not guarded.is_on
    assert len(told.complaints) == 1


def test_an_error_while_an_observer_is_left_changes_nothing() -> None:
    told = Told()
    guarded = Guarded("display", Breaking, told, leave=lambda display: 1 / 0)
    guarded.tell(lambda display: [].pop())
    assert told.complaints == [("display", "IndexError('pop from empty list')")]


def test_an_error_of_an_observer_fails_a_test(tmp_path: Path) -> None:
    assert os.environ[RAISE_VARIABLE]
    complain = Complaints(tmp_path / "observers.log", print)
    with pytest.raises(KeyError):
        Guarded("metrics", lambda: {}["a"], complain)


def test_a_complaint_is_one_line_for_the_user_and_the_whole_error_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RAISE_VARIABLE)
    said, log = list[str](), tmp_path / "observers.log"
    Guarded("metrics", lambda: {}["a"], Complaints(log, said.append))
    assert said == [f"metrics: switched off, the run goes on (KeyError: 'a'; see {log})"]
    assert "Traceback" in log.read_text()


def test_plain_lines_take_the_place_of_a_display_that_breaks() -> None:
    said, told, breaking = list[str](), Told(), Breaking()
    display = SafeDisplay([lambda: breaking, lambda: PlainDisplay(60, said.append)], told)
    display.row(ROW)
    breaking.breaks = True
    display.entry(Entry(now=1.0, event=ev.TimerFired(), commands=()))
    display.row(ROW)
    display.say("a sentence")
    display.close()
    assert breaking.rows == [ROW]
    assert breaking.is_closed
    assert said[0].startswith("step  7/60")
    assert said[1] == "a sentence"
    assert told.complaints == [("display", "KeyError('train:0:1:0:0')")]


@pytest.mark.parametrize("call", ["say", "begin", "entry", "row", "waits", "close"])
def test_no_call_of_a_display_raises(call: str) -> None:
    told, breaking = Told(), Breaking()
    breaking.breaks = True
    display = SafeDisplay([lambda: breaking, lambda: breaking], told)
    match call:
        case "say":
            display.say("x")
        case "begin":
            display.begin(RunFold(), [ROW])
        case "entry":
            display.entry(Entry(now=1.0, event=ev.TimerFired(), commands=()))
        case "row":
            display.row(ROW)
        case "waits":
            display.waits([], 0.0)
        case "close":
            display.close()
    assert len(told.complaints) == 2
    display.row(ROW)
    assert len(told.complaints) == 2
