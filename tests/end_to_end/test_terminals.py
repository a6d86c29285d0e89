"""Runs on a terminal and into a pipe: Ctrl-C in mid-step, when responses have ended and their rewards have not come;
then the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end import launch, terminal
from tailrace.core.events import RunResumed
from tailrace.observe.guarded import RAISE_VARIABLE
from tailrace.observe.journal import journal_file

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROOT = Path(__file__).parents[2]

REWARD = """
import time
from pathlib import Path

def score(response, answer):
    while Path(HELD_ONCE).exists() and not Path(GO).exists():
        Path(WAITING).touch()
        time.sleep(0.01)
    return float(response.strip().endswith(answer))
"""


class Held:
    """A run whose rewards do not come back while there is a file ``held_once``, until ``go`` is called."""

    def __init__(self, folder: Path, *, has_checkpoint: bool) -> None:
        self.output, self._waiting, self._go = folder / "run", folder / "waiting", folder / "go"
        held_once = self.output / ("checkpoints/latest" if has_checkpoint else "journal.jsonl")
        names = {"HELD_ONCE": held_once, "GO": self._go, "WAITING": self._waiting}
        text = REWARD
        for name, path in names.items():
            text = text.replace(name, repr(str(path)))
        self._reward = folder / "reward.py"
        self._reward.write_text(text)

    def command(self, verb: str, **overrides: Any) -> list[str]:
        given = {"eval_interval": "null", "eval": "[]", "save_interval": 1, **overrides}
        functions = f'["{self._reward}:score"]'
        words = launch.command(self.output, reward__functions=functions, **given)
        prompts = ["--num-prompts", "6"] if verb == "rollout" else []
        return [verb if word == "train" else word for word in words] + prompts

    def is_waiting(self) -> bool:
        return self._waiting.exists()

    def go(self) -> None:
        self._go.touch()


@pytest.fixture(autouse=True)
def heeded_interrupts() -> Iterator[None]:
    """What a shell starts in the background ignores Ctrl-C, and so would the runs that these tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def was_resumed(output: Path) -> bool:
    return any(isinstance(entry.event, RunResumed) for _, entry in journal_file.read(output / "journal.jsonl"))


@pytest.mark.parametrize(("verb", "has_checkpoint"), [("train", True), ("train", False), ("rollout", False)])
def test_ctrl_c_on_a_terminal_and_the_same_command_again(tmp_path: Path, verb: str, has_checkpoint: bool) -> None:
    held = Held(tmp_path, has_checkpoint=has_checkpoint)
    command = held.command(verb)
    first = terminal.run(command, press=terminal.CONTROL_C, when=held.is_waiting)
    assert first.code == 1
    assert "the same command continues it from here" in first.shown
    held.go()
    second = terminal.run(command)
    assert second.code == 0, second.shown[-4000:]
    assert "done: " in second.shown
    assert was_resumed(held.output)


@pytest.mark.parametrize(("verb", "has_checkpoint"), [("train", True), ("train", False), ("rollout", False)])
def test_an_interrupt_into_a_pipe_and_the_same_command_again(tmp_path: Path, verb: str, has_checkpoint: bool) -> None:
    held = Held(tmp_path, has_checkpoint=has_checkpoint)
    command = held.command(verb)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        launch.wait_until(process, held.is_waiting)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=200)
    assert process.returncode == 1, said.decode()
    held.go()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "done: " in ended.stdout
    assert was_resumed(held.output)


def test_the_example_of_a_crash_works_on_a_terminal(tmp_path: Path) -> None:
    script = ROOT / "examples" / "04_resume_after_a_crash.py"
    ended = terminal.run(
        [sys.executable, "-c", f"import os, runpy; os.chdir({str(tmp_path)!r}); runpy.run_path({str(script)!r})"]
    )
    assert ended.code == 0, ended.shown[-4000:]
    assert "done: 6 steps are done" in ended.shown


def test_a_run_goes_on_when_its_metrics_cannot_be_written(tmp_path: Path) -> None:
    output = tmp_path / "run"
    (output / "metrics.jsonl").mkdir(parents=True)  # so that there can be no such file
    command, lenient = launch.command(output, report=True), {**os.environ, RAISE_VARIABLE: ""}
    strict = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert strict.returncode == 1, "a test must see it"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, env=lenient)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("metrics: switched off, the run goes on (IsADirectoryError") == 1
    assert "done: 4 steps are done" in ended.stdout
    assert "IsADirectoryError" in (output / "logs" / "observers.log").read_text()
    assert (output / "report.html").exists()
