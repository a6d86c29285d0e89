from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.weights.slot_locks import SlotLocks

HOLDER = Path(__file__).with_name("holder.py")
FOR_EVER = 1e9


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    return path


@contextlib.contextmanager
def opening(path: Path) -> Iterator[SlotLocks]:
    handle = os.open(path, os.O_RDWR)
    yield SlotLocks(handle)
    os.close(handle)


def test_readers_share_a_slot_and_the_writer_has_it_alone(path: Path) -> None:
    with opening(path) as writer, opening(path) as one, opening(path) as other:
        assert one.share(0)
        assert other.share(0)
        assert not writer.own(0, patience_s=0.0)
        assert writer.own(1, patience_s=0.0), "the slots have nothing to do with each other"
        assert not one.share(1)
        one.leave(0)
        assert not writer.own(0, patience_s=0.0)
        other.leave(0)
        assert writer.own(0, patience_s=0.0)


def test_a_reader_that_is_killed_lets_go(path: Path) -> None:
    process = subprocess.Popen([sys.executable, str(HOLDER), str(path), "1"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with opening(path) as writer:
            assert not writer.own(1, patience_s=0.0)
            process.kill()
            assert writer.own(1, patience_s=FOR_EVER)
    finally:
        process.kill()
        process.communicate()
