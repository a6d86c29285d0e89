"""Small questions and answers between a sender of weights and a receiver: JSON over a TCP connection.

Every wait has a limit. If a peer has ended, or stays silent for longer, ``PeerLost`` says who was waited for and for
what.
"""

from __future__ import annotations

import json
import socket
import struct
import weakref
from contextlib import suppress
from typing import Any

_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 28
"""Longest message that is believed."""

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

    def receive(self, what: str, *, limit_s: float | None) -> Message:
        """Wait for a message. ``what`` names the wait in an error. ``limit_s``: None means while the peer lives."""
        try:
            self._connection.settimeout(limit_s)
            [length] = _LENGTH.unpack(self._read(_LENGTH.size))
            if length > _MOST_BYTES:
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
