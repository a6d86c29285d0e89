"""Which processes of a run a signal to stop ends, and which not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

WORKER = """
import os, signal, subprocess, sys
from tailrace.workers.stop_signals import STOP_SIGNALS, has_stop_signal_come, outlive_stop_signals
outlive_stop_signals()
print("has come:", has_stop_signal_come(), flush=True)
for number in STOP_SIGNALS:
    os.kill(os.getpid(), number)
print("alive; has come:", has_stop_signal_come(), flush=True)
program = subprocess.run([sys.executable, "-c", "import signal; signal.raise_signal(signal.SIGTERM)"])
print("a program that it starts:", program.returncode, flush=True)
if (child := os.fork()) == 0:
    signal.raise_signal(signal.SIGTERM)
    os._exit(0)
print("a process that it forks:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print("ignored:", signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
"""


@pytest.mark.parametrize("is_ignored", [False, True], ids=["as usual", "under nohup"])
def test_a_worker_outlives_the_signals_and_its_children_do_not(is_ignored: bool) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
    try:
        ended = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=60)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.stdout.splitlines() == [
        "has come: False",
        "alive; has come: True",
        "a program that it starts: -15",
        "a process that it forks: -15",
        f"ignored: {is_ignored}",
    ], ended.stderr


CONTROLLER = """
import asyncio, sys
from tailrace.workers.stop_signals import heed_stop_signals

async def main():
    heard = asyncio.Queue()
    heed_stop_signals(asyncio.get_running_loop(), lambda number: heard.put_nowait("asked to stop"))
    print("ready", flush=True)
    print(await heard.get(), flush=True)

asyncio.run(main())
"""


def test_a_controller_under_nohup_hears_sigterm_and_not_sighup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = subprocess.Popen([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "asked to stop\n"
    assert process.returncode == 0
