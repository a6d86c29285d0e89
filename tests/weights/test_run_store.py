"""The store of a process group, over real sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist

from tailrace.weights.collective.run_store import RunStore, join_store, open_store


@pytest.fixture
def store() -> Iterator[RunStore]:
    return open_store(limit_s=30.0)


def test_members_see_the_same_values(store: RunStore) -> None:
    other = join_store(store.place, limit_s=30.0)
    other.set("name", b"\0\xff")
    store.set("text", "abc")
    assert (store.get("name"), other.get("text")) == (b"\0\xff", b"abc")
    assert [other.add("count", 2), store.add("count", -5), other.add("count", 0)] == [2, -3, -3]
    assert other.get("count") == b"-3"
    assert [other.compare_set("lock", "", "mine"), store.compare_set("lock", "", "his")] == [b"mine", b"mine"]
    assert store.compare_set("lock", "mine", "free") == b"free"
    assert (other.check(["name", "text"]), other.check(["name", "nothing"])) == (True, False)
    assert (other.num_keys(), other.delete_key("name"), other.delete_key("name"), store.num_keys()) == (
        4,
        True,
        False,
        3,
    )


def test_a_value_that_comes_later_is_waited_for_while_other_threads_ask(store: RunStore) -> None:
    other = join_store(store.place, limit_s=30.0)
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(other.get("late")))
    waiting.start()
    other.set("late", b"here")
    waiting.join()
    assert found == [b"here"]


def test_a_value_that_never_comes_is_waited_for_up_to_the_limit(store: RunStore) -> None:
    for each in (store, join_store(store.place, limit_s=30.0)):
        with pytest.raises(dist.DistStoreError, match=r"waited 0\.01 s for nothing"):
            each.wait(["nothing"], timedelta(milliseconds=10))


def test_who_does_not_know_the_key_is_turned_away(store: RunStore) -> None:
    with pytest.raises(dist.DistStoreError, match="its first member"):
        join_store(replace(store.place, key="guessed"), limit_s=30.0)
    for said in (
        framed(b"[1]"),
        framed(b'{"ask": "set", "key": "a", "value": "00"}'),
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff" * 99,
    ):
        with socket.create_connection((store.place.host, store.place.port), timeout=30.0) as stranger:
            answer = whole_answer(stranger, said)
        assert not answer or set(json.loads(answer[4:])) == {"challenge"}  # it may be lost when the connection ends
    assert store.num_keys() == 0


def test_a_proof_cannot_be_sent_back(store: RunStore) -> None:
    """A stranger that asks one connection for what another one wants to know."""
    with (
        socket.create_connection((store.place.host, store.place.port), timeout=30.0) as first,
        socket.create_connection((store.place.host, store.place.port), timeout=30.0) as second,
    ):
        challenges = [json.loads(read_frame(each))["challenge"] for each in (first, second)]
        first.sendall(framed(json.dumps({"challenge": challenges[1], "proof": "0"}).encode()))
        assert read_frame(first) == b""


def test_a_store_that_nobody_refers_to_listens_no_more() -> None:
    store = open_store(limit_s=30.0)
    place = store.place
    other = join_store(place, limit_s=30.0)
    del store
    with pytest.raises(dist.DistStoreError):
        other.num_keys()
    with pytest.raises(dist.DistStoreError, match="cannot be reached"):
        join_store(place, limit_s=30.0)


def framed(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def whole_answer(stranger: socket.socket, said: bytes) -> bytes:
    answer = b""
    with suppress(OSError):  # it may be turned away before all is said
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        while piece := stranger.recv(4096):
            answer += piece
    return answer


def read_frame(connection: socket.socket) -> bytes:
    file = connection.makefile("rb")
    head = file.read(4)
    return file.read(struct.unpack("!I", head)[0]) if head else b""
