from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.weights.slots.slot_locks import RETRY_S, ReaderWait, SlotLocks
from weights.virtual_time import VirtualTime

LIMIT_S = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(64))
    return path


@contextlib.contextmanager
def opening(path: Path, flags: int = os.O_RDONLY) -> Iterator[SlotLocks]:
    handle = os.open(path, flags)
    yield SlotLocks(handle)
    os.close(handle)


@pytest.fixture
def writer(path: Path) -> Iterator[SlotLocks]:
    with opening(path, os.O_RDWR) as locks:
        yield locks


def test_the_writer_sees_who_reads_a_slot_until_the_last_has_ended(path: Path, writer: SlotLocks) -> None:
    with opening(path) as one, opening(path) as other:
        assert writer.find_read(0) is None
        one.begin_read(0)
        other.begin_read(0)
        assert writer.find_read(0) is not None
        assert writer.find_read(1) is None, "the slots have nothing to do with each other"
        one.end_read(0)
        assert writer.find_read(0) is not None
        other.end_read(0)
        assert writer.find_read(0) is None


def test_reads_that_are_ignored_do_not_hide_others(path: Path, writer: SlotLocks) -> None:
    with opening(path) as one, opening(path) as other:
        one.begin_read(1)
        first = writer.find_read(1)
        assert first is not None
        other.begin_read(1)
        second = writer.find_read(1, ignoring=[first])
        assert second is not None
        assert second != first
        assert writer.find_read(1, ignoring=[first, second]) is None
        assert writer.is_going_on(first)
        one.end_read(1)
        assert not writer.is_going_on(first)


def test_each_read_is_waited_for_up_to_the_limit_and_never_again(path: Path, writer: SlotLocks) -> None:
    time = VirtualTime()
    readers = ReaderWait(writer, limit_s=LIMIT_S, now=time.now, sleep=time.sleep)
    with opening(path) as reader:
        for expected in (1, 2):
            reader.begin_read(0)
            for _ in range(3):
                readers.wait(0)
            assert time.seconds == pytest.approx(expected * LIMIT_S, abs=4 * RETRY_S)
            reader.end_read(0)


def test_others_are_waited_for_while_an_overdue_read_goes_on(path: Path, writer: SlotLocks) -> None:
    time = VirtualTime()
    about_to_end: list[SlotLocks] = []

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        for locks in about_to_end:
            locks.end_read(0)

    readers = ReaderWait(writer, limit_s=LIMIT_S, now=time.now, sleep=sleep)
    with opening(path) as stuck, opening(path) as busy:
        stuck.begin_read(0)
        readers.wait(0)
        begun = time.seconds
        busy.begin_read(0)
        about_to_end.append(busy)
        readers.wait(0)
        assert time.seconds == begun + RETRY_S
