"""A cell of a notebook is interrupted and run again: the first run stops in order, the second continues it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.observe.journal.journal_file import read

pytestmark = [pytest.mark.slow, pytest.mark.long]

NOTEBOOK = """
import asyncio, os, signal, threading, time, tailrace
from pathlib import Path

journal = Path(OUTPUT) / "journal.jsonl"

def cell(max_steps):
    return tailrace.train(
        model="tiny-arith",
        prompts=[{"prompt": text} for text in ("17+8=", "3+4=", "5+6=")],
        reward=lambda response: float("1" in {*response, "0"}),
        output_dir=OUTPUT, max_steps=max_steps, rollout_batch_size=2, n_samples_per_prompt=2, max_response_length=16,
        say=lambda line: None,
    )

def interrupt_in_training():
    while not (journal.exists() and b"FinishStep" in journal.read_bytes()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

async def notebook():
    threading.Thread(target=interrupt_in_training, daemon=True).start()
    first = cell(3)
    print("first", first.is_complete, first.reason)
    second = cell(3)
    print("second", second.is_complete, second.reason)

signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.new_event_loop().run_until_complete(notebook())
"""


def test_an_interrupted_cell_that_is_run_again_continues_its_run(tmp_path: Path) -> None:
    script = NOTEBOOK.replace("OUTPUT", repr(str(tmp_path / "run")))
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert ended.stdout.splitlines() == ["first False it was asked to stop", "second True 3 steps are done"], (
        ended.stderr
    )
    times = [entry.now for _, entry in read(tmp_path / "run" / "journal.jsonl")]
    assert times == sorted(times)
