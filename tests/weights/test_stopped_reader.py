"""A reader process that is really stopped while it reads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.core.ids import Version
from tailrace.weights.slots.slot_locks import RETRY_S, ReaderWait
from tailrace.weights.slots.two_slots import WeightWriter, layout_of
from weights.channel_kinds import make_kind
from weights.contents import weights
from weights.virtual_time import VirtualTime
from weights.writer_process import with_tests_on_path

READER = Path(__file__).with_name("stopping_reader.py")
LIMIT_S = 30.0


@contextlib.contextmanager
def stopped_reader(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(READER), kind, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_tests_on_path()) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            yield process
        finally:
            process.kill()


@pytest.fixture(params=["shared memory", "device memory in files"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w"


@pytest.fixture
def time() -> VirtualTime:
    return VirtualTime()


@pytest.fixture
def writer(kind: str, path: Path, time: VirtualTime) -> WeightWriter:
    file = make_kind(kind).file(path, layout_of(weights(0)))
    return WeightWriter(file, ReaderWait(file.locks, limit_s=LIMIT_S, now=time.now, sleep=time.sleep))


@pytest.mark.long
def test_a_stopped_reader_costs_one_wait_in_all_and_reads_again_when_it_continues(
    kind: str, path: Path, writer: WeightWriter, time: VirtualTime
) -> None:
    writer.publish(Version(0), weights(0))
    with stopped_reader(kind, path) as process:
        writer.publish(Version(1), weights(1))
        assert time.seconds == 0, "it reads the other slot"
        for version in range(2, 8):
            writer.publish(Version(version), weights(version))
        assert time.seconds == pytest.approx(LIMIT_S, abs=2 * RETRY_S)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        pulled = [json.loads(line) for line in process.stdout]
    assert pulled == [[7, [7.0]], [7, [7.0]]]


@pytest.mark.long
def test_a_stopped_reader_that_is_killed_costs_no_further_wait(
    kind: str, path: Path, writer: WeightWriter, time: VirtualTime
) -> None:
    writer.publish(Version(0), weights(0))
    with stopped_reader(kind, path):
        writer.publish(Version(1), weights(1))
    for version in range(2, 8):
        writer.publish(Version(version), weights(version))
    assert time.seconds == 0
