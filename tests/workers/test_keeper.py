"""A keeper whose worker cannot be killed: it gives up after some time, and the run is told."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tailrace.runtime.launchers.process import reason_of
from tailrace.workers.keeper import LEFT_BEHIND

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="there are keepers on Linux only")]

KEEPER = """
import os, time
from tailrace.workers import keeper

class Hanging(keeper._Kept):
    def reap(self):
        return True  # a worker that hangs in the kernel has not ended, as a killed one that nobody waits for

worker = os.fork()
if worker == 0:
    time.sleep(600)
ended, _ = os.pipe()
kept = Hanging(worker)
kept.end(ended, give_up_s=0.2)
keeper.end_like(kept.status, note=1)
"""


def test_a_keeper_gives_up_a_worker_that_cannot_be_killed() -> None:
    ended = subprocess.run([sys.executable, "-c", KEEPER], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, LEFT_BEHIND.decode(), "")


def test_the_run_is_told_that_the_worker_is_left_behind() -> None:
    assert reason_of(1, name="training", is_left_behind=True) == (
        "worker 'training' did not end within 60 s after SIGKILL and is left behind: it hangs in the kernel, for"
        " example in a driver or a network file system"
    )
    assert reason_of(1, name="training", last_line="no") == "worker 'training' exited with code 1: no"
    assert reason_of(125, name="training") == "worker 'training' exited with code 125", "any code may be a worker's own"
    assert reason_of(-9, name="training") == "worker 'training' was killed by SIGKILL"
