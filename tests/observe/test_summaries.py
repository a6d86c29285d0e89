"""A summary saves readers the old part of a journal and never says anything else than it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from core.world import World
from observe.runs import write_journal
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe import summaries
from tailrace.observe.account import Account
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_file import JournalFile
from tailrace.observe.journal.journal_segments import SUMMARY_NAME, pack
from tailrace.observe.journal.run_files import RunFiles

SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=4)
CUT = 60


@pytest.fixture
def entries() -> list[Entry]:
    world = World(SCHEDULE, random.Random(1))
    world.run()
    return world.entries


@pytest.fixture
def files(tmp_path: Path, entries: list[Entry]) -> RunFiles:
    """A run whose first entries are in a compressed segment."""
    run = write_journal(tmp_path / "run", [])
    journal = JournalFile.open(run / "journal.jsonl")
    for number, entry in enumerate(entries, 1):
        journal.append(entry)
        if number == CUT:
            journal.close_segment()
    journal.close()
    pack(run / "journal.jsonl", until=journal.size)
    return RunFiles.find(run)


def facts(account: Account) -> object:
    lanes, totals = account.timeline.lanes(), account.fates.totals(is_training=True)
    return account.steps, account.evaluations, lanes, totals, account.now, account.num_entries, account.version


def test_a_summary_and_the_entries_after_it_give_the_account_of_the_whole_journal(
    files: RunFiles, entries: list[Entry]
) -> None:
    position = summaries.extend(files)
    account, start = summaries.start(files)
    assert (start, account.num_entries) == (position, CUT)
    account.follow(entry for _, entry in journal_file.read(files.journal, start))
    assert facts(account) == facts(Account.of(entries))


def test_a_summary_grows_by_what_was_compressed_since(files: RunFiles, entries: list[Entry]) -> None:
    first = summaries.extend(files)
    assert summaries.extend(files) == first, "there was nothing new"
    journal = JournalFile.open(files.journal)
    journal.close_segment()
    journal.close()
    pack(files.journal, until=journal.size)
    assert summaries.extend(files) == journal.size
    assert facts(summaries.start(files)[0]) == facts(Account.of(entries))


def test_without_compressed_segments_there_is_no_summary(tmp_path: Path, entries: list[Entry]) -> None:
    files = RunFiles.find(write_journal(tmp_path / "run", entries))
    assert summaries.extend(files) == 0
    assert not (files.path / SUMMARY_NAME).exists()
    assert summaries.start(files)[1] == 0


@pytest.mark.parametrize("damage", ["cut", "other code", "other format", "no summary at all", "something else"])
def test_a_summary_that_cannot_be_used_counts_for_nothing(files: RunFiles, damage: str) -> None:
    summaries.extend(files)
    path = files.path / SUMMARY_NAME
    head, _, body = path.read_bytes().partition(b"\n")
    fields = json.loads(head)
    match damage:
        case "cut":
            body = body[: len(body) // 2]
        case "other code":
            fields["code"] = "another"
        case "other format":
            fields["format"] = 1
        case "something else":
            body = gzip.compress(pickle.dumps([1, 2]))
    path.write_bytes(json.dumps(fields).encode() + b"\n" + body)
    if damage == "no summary at all":
        path.write_bytes(b"hello")
    account, position = summaries.start(files)
    assert (position, account.num_entries) == (0, 0)


class Trap:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def test_a_summary_from_a_stranger_runs_no_code(files: RunFiles, tmp_path: Path) -> None:
    summaries.extend(files)
    path = files.path / SUMMARY_NAME
    head = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(head + b"\n" + gzip.compress(pickle.dumps(Trap(tmp_path / "trapped"))))
    assert summaries.start(files)[1] == 0
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("tailrace.observe.summaries", "io.FileIO"),
        ("tailrace.observe.journal.journal_file", "JournalFile"),
        ("tailrace.observe.summaries", "Path"),
    ],
)
def test_a_summary_cannot_reach_what_writes_files(files: RunFiles, tmp_path: Path, module: str, name: str) -> None:
    """A name with dots leads out of our modules, and some of our own classes open files."""
    summaries.extend(files)
    victim, path = tmp_path / "victim", files.path / SUMMARY_NAME
    victim.write_text("precious")
    head = path.read_bytes().partition(b"\n")[0]
    strings = b"".join(pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode() for text in (module, name))
    arguments = pickle.dumps((str(victim), "w"), protocol=4)[2:-1]
    evil = pickle.PROTO + b"\x04" + strings + pickle.STACK_GLOBAL + arguments + pickle.REDUCE + pickle.STOP
    path.write_bytes(head + b"\n" + gzip.compress(evil))
    assert summaries.start(files)[1] == 0
    assert victim.read_text() == "precious"


def test_a_journal_that_is_cut_back_into_what_was_summarized_has_no_summary(files: RunFiles) -> None:
    summaries.extend(files)
    journal = JournalFile.open(files.journal)
    journal.truncate(100)
    journal.close()
    assert summaries.start(files)[1] == 0


def test_the_program_beside_a_run_writes_the_same(files: RunFiles) -> None:
    subprocess.run([sys.executable, "-m", "tailrace.observe.summaries", str(files.path)], check=True)
    assert summaries.start(files)[0].num_entries == CUT
