"""One sandbox while it lives: its processes, the channel to the harness, and their end.

It must be started, used and ended by one thread: the kernel kills it when the thread that started it ends.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from tailrace.rewards.sandbox.cases import SandboxError

_START_LIMIT_S = 60.0
_END_LIMIT_S = 30.0
_MOST_ERROR_BYTES = 1 << 16


class Lost(Exception):
    """The harness has ended, or does not answer."""

    def __init__(self, reason: str, *, is_late: bool = False) -> None:
        super().__init__(reason)
        self.is_late = is_late


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the harness says about a case."""

    code: int
    """Exit code of the program; a negative one is the number of the signal that killed it."""
    is_cut: bool
    """Whether it was killed at its limit."""
    is_flood: bool
    """Whether it wrote more than its limit; then there is no output."""
    seconds: float
    tail: str
    output: bytes
    result: bytes
    """What the function returned, as JSON; empty if it did not return."""


class Inside:
    """Owns the processes of one sandbox. `process` is bubblewrap, or the harness itself in mode weak."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, told: int | None) -> None:
        """`told`: where bubblewrap tells the id of the harness; None: the process is the harness."""
        self._process, self._channel, self._told = process, channel, told
        self._harness: int | None = None
        """The id of the harness, seen from outside."""
        self._until = 0.0
        """When to give up waiting for it."""
        self._unread = bytearray()

    def begin(self, harness: bytes) -> dict[str, Any]:
        """Send the harness. Return what it says about itself."""
        self._until = time.monotonic() + _START_LIMIT_S
        try:
            self._send(harness)
            about: dict[str, Any] = ast.literal_eval(self._receive(4096).decode())
        except Lost as error:
            raise SandboxError(f"the sandbox did not start: {self._complaint() or error}") from error
        self._harness = self._process.pid if self._told is None else _told_pid(self._told)
        return about

    @property
    def harness_pid(self) -> int:
        assert self._harness is not None
        return self._harness

    def prepare(self, settings: dict[str, object], program: bytes) -> None:
        """Tell the harness limits and program."""
        self._until = time.monotonic() + _START_LIMIT_S
        try:
            self._send(ascii(settings).encode(), program)
            self._receive(16)
        except Lost as error:
            raise SandboxError(f"the sandbox did not take the program: {error}") from error

    def send(self, head: bytes, body: bytes) -> None:
        """Hand a case over. One more than the one that runs may be handed over if its body is small."""
        self._until = time.monotonic() + _START_LIMIT_S
        self._send(head, body)

    def receive(self, *, limit_s: float, most_bytes: int) -> Claim:
        """The claim about the first case that has none yet; `Lost` if there is no answer within `limit_s`."""
        self._until = time.monotonic() + limit_s
        head = self._receive(13)
        if len(head) != 13:
            raise Lost("it does not keep to the protocol")
        flags = head[4]
        return Claim(
            code=int.from_bytes(head[:4], "big", signed=True),
            is_cut=bool(flags & 1),
            is_flood=bool(flags & 2),
            seconds=int.from_bytes(head[5:], "big") / 1e6,
            tail=self._receive(4096).decode("utf-8", "replace"),
            output=self._receive(most_bytes),
            result=self._receive(most_bytes),
        )

    def end(self) -> None:
        """Kill everything in it, and wait until it is gone."""
        self._channel.close()
        if self._told is not None and self._harness is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._harness, signal.SIGKILL)  # bubblewrap still waits for it, so the id is not another's
        else:
            self._process.kill()
        if self._told is None:
            _kill_session(self._process.pid)
        _ = self._complaint()  # its end is the end of all processes that can write there
        self._process.wait()
        if self._told is not None:
            os.close(self._told)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _complaint(self) -> str:
        """Read to the end what bubblewrap or the interpreter writes before the harness runs."""
        assert self._process.stderr is not None
        file, until, parts = self._process.stderr.fileno(), time.monotonic() + _END_LIMIT_S, b""
        while (left := until - time.monotonic()) > 0 and select.select([file], [], [], left)[0]:
            part = os.read(file, 4096)
            if not part:
                break
            parts = (parts + part)[:_MOST_ERROR_BYTES]
        else:
            self._process.kill()
        return parts.decode("utf-8", "replace").strip()

    def _send(self, *frames: bytes) -> None:
        self._channel.settimeout(max(0.01, self._until - time.monotonic()))
        try:
            self._channel.sendall(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        except OSError as error:
            raise Lost(f"it does not listen ({error})", is_late=isinstance(error, TimeoutError)) from error

    def _receive(self, most: int) -> bytes:
        count = int.from_bytes(self._receive_bytes(4), "big")
        if count > most:
            raise Lost("it does not keep to the protocol")
        return self._receive_bytes(count)

    def _receive_bytes(self, count: int) -> bytes:
        while len(self._unread) < count:
            self._channel.settimeout(max(0.01, self._until - time.monotonic()))
            try:
                part = self._channel.recv(1 << 20)
            except OSError as error:
                raise Lost(f"it does not answer ({error})", is_late=isinstance(error, TimeoutError)) from error
            if not part:
                raise Lost("it has ended")
            self._unread.extend(part)
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data


def _kill_session(leader: int) -> None:
    """Kill what is left of a session, for instance the program that killed its harness (Linux)."""
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if not name.isdecimal() or int(name) == leader:
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/stat", "rb") as file:
                session = int(file.read().rpartition(b")")[2].split()[3])
            if session == leader:
                os.kill(int(name), signal.SIGKILL)


def _told_pid(told: int) -> int:
    text = b""
    while not text.rstrip().endswith(b"}"):
        part = os.read(told, 4096)
        if not part:
            raise SandboxError("bubblewrap did not tell which process it started")
        text += part
    return int(json.loads(text)["child-pid"])
