"""Small questions and answers between processes of a run: JSON over a TCP connection.

Every wait has a limit. If a peer has ended, or stays silent for longer, ``PeerLost`` says who was waited for and for
what. Before anything else, both sides prove that they know the same key (``prove``, ``verify``); the key itself is not
sent. What is said afterwards is neither encrypted nor signed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import weakref
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 28
"""Longest message that is believed."""
_MOST_BYTES_OF_A_PROOF = 1024

Message = dict[str, Any]


class PeerLost(RuntimeError):
    """A peer has ended, cannot be reached, or does not answer."""


class ControlSocket:
    """One end of a connection. ``peer``: the other end's name, for errors. It is closed when nobody refers to it."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self._connection, self.peer = connection, peer
        self._close = weakref.finalize(self, connection.close)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone is noticed in the end

    @classmethod
    def connect(cls, host: str, port: int, *, peer: str, limit_s: float) -> ControlSocket:
        try:
            return cls(socket.create_connection((host, port), timeout=limit_s), peer)
        except OSError as error:
            raise PeerLost(f"{peer} cannot be reached at {host}:{port}: {error}") from error

    def send(self, message: Message, *, limit_s: float) -> None:
        data = json.dumps(message).encode()
        try:
            self._connection.settimeout(limit_s)
            self._connection.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise PeerLost(f"{self.peer} has ended: {error}") from error

    def prove(self, key: str, *, limit_s: float) -> None:
        """Show a peer that calls ``verify`` that we know the key, and let it show that it does."""
        asked = self._receive_proof("challenge", limit_s)
        own = secrets.token_hex(32)
        self.send({"challenge": own, "proof": _proof(key, "connects", asked, own)}, limit_s=limit_s)
        self._check(self._receive_proof("proof", limit_s), _proof(key, "listens", asked, own))

    def verify(self, key: str, *, limit_s: float) -> None:
        """Raise ``PeerLost`` unless the peer proves that it knows the key."""
        own = secrets.token_hex(32)
        self.send({"challenge": own}, limit_s=limit_s)
        answer = self._receive_all(limit_s)
        asked = str(answer.get("challenge"))
        self._check(str(answer.get("proof")), _proof(key, "connects", own, asked))
        self.send({"proof": _proof(key, "listens", own, asked)}, limit_s=limit_s)

    def _receive_proof(self, name: str, limit_s: float) -> str:
        return str(self._receive_all(limit_s).get(name))

    def _receive_all(self, limit_s: float) -> Message:
        found = self.receive("its proof", limit_s=limit_s, most_bytes=_MOST_BYTES_OF_A_PROOF)
        if not isinstance(found, dict):
            raise PeerLost(f"{self.peer} is none of ours")
        return found

    def _check(self, given: str, expected: str) -> None:
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise PeerLost(f"{self.peer} does not know the key")

    def receive(self, what: str, *, limit_s: float | None, most_bytes: int = _MOST_BYTES) -> Message:
        """Wait for a message. ``what`` names the wait in an error. ``limit_s``: None means while the peer lives."""
        try:
            self._connection.settimeout(limit_s)
            [length] = _LENGTH.unpack(self._read(_LENGTH.size))
            if length > most_bytes:
                raise PeerLost(f"{self.peer} sent a message of {length} bytes, which is none of ours")
            found: Message = json.loads(self._read(length))
        except TimeoutError as error:
            raise PeerLost(f"{self.peer} did not answer within {limit_s:g} s: waited for {what}") from error
        except (OSError, ValueError) as error:
            raise PeerLost(f"{self.peer} has ended: waited for {what} ({error})") from error
        return found

    def close(self) -> None:
        self._close()

    def end(self) -> None:
        """Close the connection, also for a thread that waits for a message."""
        with suppress(OSError):  # it may have ended already
            self._connection.shutdown(socket.SHUT_RDWR)
        self.close()

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            if not (piece := self._connection.recv(count - len(data))):
                raise OSError("the connection was closed")
            data += piece
        return bytes(data)


def _proof(key: str, side: str, *challenges: str) -> str:
    """What only who knows the key can compute. Each side has its own, so that none can be sent back."""
    return hmac.new(key.encode(), "/".join((side, *challenges)).encode(), hashlib.sha256).hexdigest()
