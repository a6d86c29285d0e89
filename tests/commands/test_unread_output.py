"""The reader of a run's output goes away (``tailrace train ... | head -3``): the run goes on and says so once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
from tailrace.commands.train import say_at_once
for number in range(3):
    say_at_once(f"line {number}")
print("what is printed without care", flush=True)
"""


def test_a_run_whose_output_nobody_reads_goes_on_and_says_so_once() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
        )
    finally:
        os.close(writer)
    assert ended.returncode == 0
    assert ended.stderr == "tailrace: nobody reads the output any more; the run goes on without it\n"
