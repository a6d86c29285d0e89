"""Responses are read by address, beside the writer and without an index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from store.test_payload_store import response, segment
from tailrace.store.address import AddressReader, address_of
from tailrace.store.payload_store import PayloadStore
from tailrace.store.record_frame import DamagedStore


def test_a_response_is_read_by_its_address_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=200) as store, AddressReader(tmp_path) as reader:
        for part in (segment(1, 0, 30), segment(2, 0, 5), segment(1, 30, 10, version=1, full=True)):
            store.append([part])
        store.append([segment(1, 35, 20, version=2)])  # replaces the tail
        found, expected = reader.read(address_of(store, response(1))), store.response(response(1))
        assert found.versions == expected.versions == ((0, 30), (1, 5), (2, 20))
        for name in ("tokens", "logprobs", "behaviour_logprobs", "mask"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_files_of_a_needed_response_are_not_deleted(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=1) as store:
        for number in range(5):
            store.append([segment(number, 0, 5)])
        address = address_of(store, response(2))
        store.release(response(number) for number in range(5) if number != 2)
        assert store.compact() == 3
        with AddressReader(tmp_path) as reader:
            assert len(reader.read(address)) == 5


def test_a_response_that_the_store_does_not_hold_has_no_address(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store, pytest.raises(LookupError, match="holds nothing of train:0:7:0:0"):
        address_of(store, response(7))


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 5)])
        address = address_of(store, response(1))
    path = tmp_path / "payload-000001.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with AddressReader(tmp_path) as reader, pytest.raises(DamagedStore, match="byte 0"):
        reader.read(address)
