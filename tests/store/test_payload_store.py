from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.payload_store import PayloadStore, StoreInUse
from tailrace.store.record import encode
from tailrace.store.record_frame import DamagedStore
from tailrace.store.segment import Segment

FILE_1 = "payload-000001.bin"


def response(number: int) -> ResponseId:
    return ResponseId(GroupId("train", 0, number), 0)


def segment(
    number: int, start: int, count: int, *, version: int | None = 0, full: bool = False, masked: bool = False
) -> Segment:
    tokens = np.arange(start, start + count, dtype=np.int32) + 1000 * number
    return Segment(
        response_id=response(number),
        start=start,
        version=None if version is None else Version(version),
        tokens=tokens,
        logprobs=-tokens.astype(np.float32) / 7,
        behaviour_logprobs=-tokens.astype(np.float32) / 3 if full else None,
        mask=np.zeros(count, np.uint8) if masked else np.ones(count, np.uint8),
    )


def test_segments_come_back_joined(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 3), segment(2, 0, 1)])
        store.append([segment(1, 3, 2, version=4, full=True), segment(1, 5, 1, version=None, masked=True)])
        joined = store.response(response(1))
        assert joined.tokens.tolist() == [1000, 1001, 1002, 1003, 1004, 1005]
        assert joined.versions == ((0, 3), (4, 2), (None, 1))
        assert joined.mask.tolist() == [1, 1, 1, 1, 1, 0]
        assert np.array_equal(joined.behaviour_logprobs[:3], joined.logprobs[:3])
        assert np.array_equal(joined.behaviour_logprobs[3:5], -joined.tokens[3:5].astype(np.float32) / 3)
        assert (store.length(response(1)), store.length(response(2)), store.length(response(3))) == (6, 1, 0)
        assert store.held() == (response(1), response(2))


def test_an_unknown_response_is_a_lookup_error(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store, pytest.raises(LookupError, match="train:0:9:0:0"):
        store.response(response(9))


def test_a_reader_reads_beside_the_writer_and_repairs_nothing(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 3)])
        with (tmp_path / FILE_1).open("ab") as file:
            file.write(b"TRS1 and no more")
        size = (tmp_path / FILE_1).stat().st_size
        with PayloadReader.open(tmp_path) as reader:
            assert reader.held() == (response(1),)
            assert reader.response(response(1)).tokens.tolist() == [1000, 1001, 1002]
        assert (tmp_path / FILE_1).stat().st_size == size


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 3), segment(2, 0, 4)])
        store.append([segment(1, 3, 3)])
    with PayloadStore.open(tmp_path) as store:
        assert store.repaired_bytes == 0
        assert store.response(response(1)).tokens.tolist() == [1000, 1001, 1002, 1003, 1004, 1005]
        store.append([segment(2, 4, 1)])
        assert store.length(response(2)) == 5


def test_an_append_survives_the_sudden_death_of_its_process(tmp_path: Path) -> None:
    script = (
        "import os, sys, numpy as np\n"
        "from tailrace.core.ids import GroupId, ResponseId\n"
        "from tailrace.store.payload_store import PayloadStore\n"
        "from tailrace.store.segment import Segment\n"
        "store = PayloadStore.open(sys.argv[1])\n"
        "ones = np.ones(3)\n"
        "store.append([Segment(response_id=ResponseId(GroupId('train', 0, 1), 0), start=0, version=0,\n"
        "                      tokens=ones, logprobs=ones, mask=ones)])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment).returncode == -9
    with PayloadStore.open(tmp_path) as store:
        assert store.length(response(1)) == 3


def test_an_append_that_starts_earlier_replaces_the_tail_and_nothing_before_it(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 4, full=True), segment(1, 4, 4), segment(1, 8, 4)])
        before = store.response(response(1))
        again = segment(1, 2, 3, version=5)
        again.tokens[:] = 7
        store.append([again])
        expected = [*before.tokens[:2].tolist(), 7, 7, 7]
        assert store.response(response(1)).tokens.tolist() == expected
        assert store.response(response(1)).versions == ((0, 2), (5, 3))
    with PayloadStore.open(tmp_path) as store:
        assert store.response(response(1)).tokens.tolist() == expected
        assert np.array_equal(store.response(response(1)).behaviour_logprobs[:2], before.behaviour_logprobs[:2])


def test_a_hole_is_refused_and_nothing_of_that_append_is_written(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        with pytest.raises(ValueError, match="starts at 5, 3 tokens are held"):
            store.append([segment(1, 0, 3), segment(1, 5, 1)])
        assert store.held() == ()
    assert (tmp_path / FILE_1).stat().st_size == 0


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    wrong = Segment(
        response_id=response(1),
        start=0,
        version=Version(0),
        tokens=np.zeros(3, np.int32),
        logprobs=np.zeros(3, np.float32),
        mask=np.ones(2, np.uint8),
    )
    with PayloadStore.open(tmp_path) as store, pytest.raises(ValueError, match="one length"):
        store.append([wrong])


def test_a_second_opening_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path), pytest.raises(StoreInUse, match=str(tmp_path)):
        PayloadStore.open(tmp_path)
    PayloadStore.open(tmp_path).close()


def test_a_store_cut_at_any_byte_opens_and_loses_only_its_last_record(tmp_path: Path) -> None:
    segments = [segment(1, 0, 3), segment(2, 0, 2, full=True), segment(1, 3, 2, masked=True), segment(3, 0, 1)]
    ends = np.cumsum([len(encode(s)) for s in segments]).tolist()
    whole = tmp_path / "whole"
    with PayloadStore.open(whole) as store:
        store.append(segments)
    data = (whole / FILE_1).read_bytes()
    assert len(data) == ends[-1]
    for cut in range(len(data) + 1):
        directory = tmp_path / "cut"
        directory.mkdir()
        (directory / FILE_1).write_bytes(data[:cut])
        num_whole = sum(end <= cut for end in ends)
        last_end = ends[num_whole - 1] if num_whole else 0
        with PayloadStore.open(directory) as store:
            assert store.repaired_bytes == cut - last_end
            held = {s.response_id: s.end for s in segments[:num_whole]}
            assert {r: store.length(r) for r in store.held()} == held
            for held_response, length in held.items():
                assert len(store.response(held_response)) == length
            store.append([segment(9, 0, 2)])
        with PayloadStore.open(directory) as store:
            assert store.repaired_bytes == 0
            assert store.length(response(9)) == 2
        shutil.rmtree(directory)


def test_a_flipped_byte_in_the_last_record_costs_that_record_only(tmp_path: Path) -> None:
    first, last = segment(1, 0, 3), segment(1, 3, 2, full=True)
    for position in range(len(encode(first)), len(encode(first)) + len(encode(last))):
        directory = tmp_path / str(position)
        with PayloadStore.open(directory) as store:
            store.append([first, last])
        flip(directory / FILE_1, position)
        with PayloadStore.open(directory) as store:
            assert store.length(response(1)) == 3
            assert store.repaired_bytes == len(encode(last))


def test_damage_in_an_earlier_file_is_an_error_that_names_file_and_offset(tmp_path: Path) -> None:
    record_bytes = len(encode(segment(1, 0, 4)))
    with PayloadStore.open(tmp_path, file_bytes=2 * record_bytes) as store:
        for number in (1, 2, 3):
            store.append([segment(number, 0, 4)])
    flip(tmp_path / FILE_1, record_bytes + 40)
    with pytest.raises(DamagedStore, match=rf"{FILE_1}, byte {record_bytes}: its checksum"):
        PayloadStore.open(tmp_path)


def test_what_was_appended_last_is_answered_without_a_read(tmp_path: Path) -> None:
    held_bytes = len(encode(segment(1, 0, 4))) + 1024
    with PayloadStore.open(tmp_path, recent_bytes=2 * held_bytes) as store:
        for number in (1, 2, 3):
            store.append([segment(number, 0, 4)])
        (tmp_path / FILE_1).write_bytes(b"")
        for number in (2, 3):
            assert store.response(response(number)).tokens.tolist() == segment(number, 0, 4).tokens.tolist()
        with pytest.raises(DamagedStore, match=FILE_1):
            store.response(response(1))


def test_damage_that_happens_while_the_store_is_open_is_noticed_on_reading(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, recent_bytes=0) as store:
        store.append([segment(1, 0, 4)])
        flip(tmp_path / FILE_1, 60)
        with pytest.raises(DamagedStore, match=FILE_1):
            store.response(response(1))


def test_files_rotate_by_size_and_compact_deletes_those_nobody_needs(tmp_path: Path) -> None:
    record_bytes = len(encode(segment(1, 0, 4)))
    with PayloadStore.open(tmp_path, file_bytes=2 * record_bytes) as store:
        for number in range(1, 6):
            store.append([segment(number, 0, 4)])
        assert payload_files(tmp_path) == [FILE_1, "payload-000002.bin", "payload-000003.bin"]
        store.release([response(1), response(2), response(3), response(5)])
        assert store.compact() == 1  # 4 needs the second file, the third is still being written
        assert payload_files(tmp_path) == ["payload-000002.bin", "payload-000003.bin"]
        assert store.response(response(4)).tokens.tolist() == [4000, 4001, 4002, 4003]
        with pytest.raises(LookupError):
            store.response(response(1))
    with PayloadStore.open(tmp_path, file_bytes=2 * record_bytes) as store:
        store.append([segment(6, 0, 4), segment(7, 0, 4)])
        assert payload_files(tmp_path)[-1] == "payload-000004.bin"


def test_a_response_whose_beginning_was_compacted_away_does_not_hinder_opening(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=1) as store:
        store.append([segment(1, 0, 4)])
        store.append([segment(1, 4, 4), segment(2, 0, 4)])
        store.append([segment(3, 0, 4)])
        store.release([response(1)])
        assert store.compact() == 1
    with PayloadStore.open(tmp_path) as store:
        assert store.held() == (response(2), response(3))


def test_a_replaced_record_behind_a_deleted_file_does_not_cost_what_is_needed(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=1) as store:
        store.append([segment(1, 0, 4)])
        store.append([segment(1, 4, 4)])
        store.append([segment(1, 8, 4), segment(2, 0, 4)])
        store.append([segment(1, 2, 3)])
        store.append([segment(3, 0, 4)])
        assert store.compact() == 1  # the second file: its only record was replaced by the fourth
    with PayloadStore.open(tmp_path) as store:
        assert store.response(response(1)).tokens.tolist() == [1000, 1001, 1002, 1003, 1004]
        assert store.length(response(2)) == 4


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x41
    path.write_bytes(data)


def payload_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.bin"))
