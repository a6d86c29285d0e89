"""The tokens of a response are read by address without numpy, and addresses are small."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from store.test_payload_store import response, segment
from tailrace.store.address import address_of
from tailrace.store.payload_store import PayloadStore
from tailrace.store.place import ResponseAddress
from tailrace.store.record_frame import DamagedStore
from tailrace.store.token_reader import read_tokens


def test_the_tokens_are_those_of_the_response(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=200) as store:
        for part in (segment(1, 0, 30), segment(2, 0, 5), segment(1, 30, 10, version=1, full=True)):
            store.append([part])
        store.append([segment(1, 35, 20, version=2, masked=True)])  # replaces the tail
        for number in (1, 2):
            found = read_tokens(tmp_path, address_of(store, response(number)))
            assert found == tuple(store.response(response(number)).tokens.tolist())


def test_an_address_that_travelled_is_the_same_address(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=1) as store:
        for start in range(3):
            store.append([segment(1, start, 1)])
        address = address_of(store, response(1))
    travelled = pickle.loads(pickle.dumps(address))
    assert isinstance(travelled, ResponseAddress)
    assert travelled == address
    assert [place.file for place in travelled.places] == [1, 2, 3]


def test_an_address_takes_forty_bytes_for_each_segment(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append(segment(1, start, 1) for start in range(1000))
        assert len(pickle.dumps(address_of(store, response(1)))) < 40_500


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 5)])
        address = address_of(store, response(1))
    path = tmp_path / "payload-000001.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedStore, match=r"payload-000001\.bin, byte 0: its checksum does not match"):
        read_tokens(tmp_path, address)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 5)])
        address = address_of(store, response(1))
    (tmp_path / "payload-000001.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"payload-000001\.bin"):
        read_tokens(tmp_path, address)
