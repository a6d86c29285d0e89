"""The store at which members of a process group meet. Only who knows its key can use it.

torch.distributed has such stores, but they listen on every address of the machine and answer everybody. This one
listens on one address (``own_address.py``), and both sides prove that they know the key before anything else is said.

    first member     store = open_store(limit_s=600)          tells the others ``store.place``, through links of the run
    other members    store = join_store(place, limit_s=600)
"""

from __future__ import annotations

import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from tailrace.weights.collective.control_socket import ControlSocket, Message, PeerLost
from tailrace.weights.collective.own_address import own_address

_PROOF_LIMIT_S = 60.0
"""Longest time in which somebody who connects must prove that he knows the key."""
_ANSWER_LIMIT_S = 60.0
"""Longest time for an answer, beyond the time for which the question may wait."""

Ask = Callable[[Message], Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """Where a store is, and its key."""

    host: str
    port: int
    key: str


class RunStore(Store):
    """One member's view of a store."""

    def __init__(self, ask: Ask, place: StorePlace, *, limit_s: float) -> None:
        super().__init__()
        self._ask, self.place, self._limit_s = ask, place, limit_s

    def set(self, key: str, value: bytes | str) -> None:
        self._ask({"ask": "set", "key": key, "value": _as_bytes(value).hex()})

    def get(self, key: str) -> bytes:
        self.wait([key])
        found: list[str | None] = self._ask({"ask": "get", "key": key})["values"]
        if found[0] is None:
            raise dist.DistStoreError(f"{key} was deleted")
        return bytes.fromhex(found[0])

    def add(self, key: str, amount: int) -> int:
        return int(self._ask({"ask": "add", "key": key, "amount": amount})["value"])

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        given = {"expected": _as_bytes(expected).hex(), "desired": _as_bytes(desired).hex()}
        return bytes.fromhex(self._ask({"ask": "compare_set", "key": key, **given})["value"])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit_s = self._limit_s if timeout is None else timeout.total_seconds()
        missing = self._ask({"ask": "wait", "keys": list(keys), "limit_s": limit_s})["missing"]
        if missing:
            raise dist.DistStoreError(f"waited {limit_s:g} s for {', '.join(missing)}")

    def check(self, keys: Sequence[str]) -> bool:
        return not self._ask({"ask": "wait", "keys": list(keys), "limit_s": 0.0})["missing"]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask({"ask": "delete", "key": key})["was_there"])

    def num_keys(self) -> int:
        return int(self._ask({"ask": "count"})["value"])

    def clone(self) -> RunStore:
        return self


def open_store(*, limit_s: float) -> RunStore:
    """A new store on a free port of this machine. It is closed when nobody refers to it."""
    host, key = own_address(), secrets.token_hex(32)
    server = _Server(socket.create_server((host, 0)), key)
    store = RunStore(server.table.answer, StorePlace(host=host, port=server.port, key=key), limit_s=limit_s)
    weakref.finalize(store, server.close)
    return store


def join_store(place: StorePlace, *, limit_s: float) -> RunStore:
    """Raises ``DistStoreError`` if it cannot be reached."""
    ask = _Connections(place).ask
    ask({"ask": "count"})
    return RunStore(ask, place, limit_s=limit_s)


class _Table:
    """The values, as hexadecimal text, and the threads that wait for them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def answer(self, asked: Message) -> Message:
        with self._changed:
            match asked:
                case {"ask": "set", "key": key, "value": value}:
                    self._put(key, value)
                    return {}
                case {"ask": "get", "key": key}:
                    return {"values": [self._values.get(key)]}
                case {"ask": "add", "key": key, "amount": amount}:
                    total = int(bytes.fromhex(self._values.get(key, b"0".hex()))) + int(amount)
                    self._put(key, str(total).encode().hex())
                    return {"value": total}
                case {"ask": "compare_set", "key": key, "expected": expected, "desired": desired}:
                    if self._values.get(key, "") == expected:
                        self._put(key, desired)
                    return {"value": self._values.get(key, expected)}
                case {"ask": "wait", "keys": keys, "limit_s": limit_s}:
                    self._changed.wait_for(lambda: not self._missing(keys), limit_s)
                    return {"missing": self._missing(keys)}
                case {"ask": "delete", "key": key}:
                    return {"was_there": self._values.pop(key, None) is not None}
                case {"ask": "count"}:
                    return {"value": len(self._values)}
                case _:
                    raise PeerLost(f"a question that cannot be answered: {str(asked)[:80]}")

    def _put(self, key: str, value: str) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key not in self._values]


class _Server:
    """Owns the table, the listening socket, and a thread for each connection."""

    def __init__(self, listener: socket.socket, key: str) -> None:
        self.table = _Table()
        self._listener, self._key = listener, key
        self.port: int = listener.getsockname()[1]
        self._connections: weakref.WeakSet[ControlSocket] = weakref.WeakSet()
        threading.Thread(target=self._accept, name="store", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):  # also for the thread that waits at it; where that is not possible, closing is enough
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._connections):
            connection.end()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the store is closed
            control = ControlSocket(connection, "a member of the group")
            self._connections.add(control)
            threading.Thread(target=self._serve, args=(control,), name="store-member", daemon=True).start()

    def _serve(self, control: ControlSocket) -> None:
        try:
            control.verify(self._key, limit_s=_PROOF_LIMIT_S)
            while True:
                answer = self.table.answer(control.receive("a question", limit_s=None))
                control.send(answer, limit_s=_ANSWER_LIMIT_S)
        except PeerLost:
            pass  # it has ended, or it is none of us
        finally:
            control.close()


class _Connections:
    """Connections to a store of another process. A thread that asks takes a free one, or makes one."""

    def __init__(self, place: StorePlace) -> None:
        self._place = place
        self._free: list[ControlSocket] = []

    def ask(self, message: Message) -> Message:
        limit_s = float(message.get("limit_s", 0.0)) + _ANSWER_LIMIT_S
        try:
            control = self._take()
            control.send(message, limit_s=limit_s)
            answer = control.receive("an answer", limit_s=limit_s)
        except PeerLost as lost:
            raise dist.DistStoreError(f"the group's store: {lost}") from lost
        self._free.append(control)
        return answer

    def _take(self) -> ControlSocket:
        with suppress(IndexError):
            return self._free.pop()
        place = self._place
        control = ControlSocket.connect(place.host, place.port, peer="its first member", limit_s=_ANSWER_LIMIT_S)
        control.prove(place.key, limit_s=_ANSWER_LIMIT_S)
        return control


def _as_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
