"""User ids for programs: each process that runs programs as root has one that no other such process has.

The kernel counts processes per user id, so programs of different ids cannot use up one another's. An id is claimed by
binding a name in the abstract namespace of sockets: the kernel frees it when its owner ends, however that happens, and
no file is left.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tailrace.rewards.sandbox.cases import SandboxError

NUM_SLOTS = 4096
_USUAL_FIRST = 2_000_000_000
"""Far above the ids of people, services and containers."""


class Slot:
    """Owns a user id until it is closed."""

    def __init__(self, number: int, uid: int, claim: socket.socket) -> None:
        self.number, self.uid, self._claim = number, uid, claim

    @classmethod
    def take(cls, number: int | None = None) -> Self:
        """Claim an id: that of slot `number`, or any that is free."""
        first = first_uid(_uid_map())
        start = os.getpid() if number is None else number
        for offset in range(NUM_SLOTS if number is None else 1):
            slot = (start + offset) % NUM_SLOTS
            uid = first + slot
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0tailrace-sandbox-{uid}")
            except OSError as error:
                claim.close()
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            return cls(slot, uid, claim)
        wanted = f"slot {number} is" if number is not None else f"all {NUM_SLOTS} slots are"
        raise SandboxError(f"{wanted} taken by other processes that run programs")

    def close(self) -> None:
        self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def first_uid(uid_map: Sequence[tuple[int, int]]) -> int:
    """The first of `NUM_SLOTS` ids that exist here. `uid_map`: first id and number of ids of each range that does."""
    if any(start <= _USUAL_FIRST and start + count >= _USUAL_FIRST + NUM_SLOTS for start, count in uid_map):
        return _USUAL_FIRST
    start, count = max(uid_map, key=lambda part: part[0] + part[1])
    # The last ids of a usual container: 65534 is nobody, and 61184 to 65519 are given to services by systemd.
    if start + count == 65536:
        count -= 65536 - 61184
    if count < NUM_SLOTS + 1000:
        raise SandboxError(
            f"this container has only {count} user ids, and programs need {NUM_SLOTS} of their own; run it with more, "
            "or as an ordinary user"
        )
    return start + count - NUM_SLOTS


def _uid_map() -> list[tuple[int, int]]:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return [(int(line.split()[0]), int(line.split()[2])) for line in file]
