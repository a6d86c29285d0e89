"""A process group of torch.distributed with which one receiver gets weights from all senders.

    rank 0           the receiver; it also has the store at which all meet
    rank 1 to n      the senders

The group stands beside torch's default group and is known to nobody else, since a process may be in several of them: an
engine may have a default group of its own, and a sender has one group for each receiver. Only ``send`` and ``receive``
are used, so a group is no collective that all its members must enter together.

The backend is gloo on CPUs and NCCL between GPUs. NCCL runs the same code; it has not been tried on several GPUs.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from tailrace.weights.collective.control_socket import PeerLost
from tailrace.weights.collective.run_store import RunStore, StorePlace, join_store

GLOO, NCCL = "gloo", "nccl"
RECEIVER = 0


class _Closable(Protocol):
    def close(self) -> None: ...


_users: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_at_exit(user: _Closable) -> None:
    """Close the owner of groups before the interpreter ends: a group that ends later aborts the process."""
    _users.add(user)


@atexit.register
def _close_all() -> None:
    for user in list(_users):
        user.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeat:
    """A place in a group that is being formed. The first three say where the group's store is."""

    host: str
    port: int
    key: str
    rank: int
    size: int
    backend: str


class PeerGroup:
    """One member's end of a group."""

    def __init__(self, seat: GroupSeat, *, limit_s: float, store: RunStore | None = None) -> None:
        """Return when all members are there. ``store``: the receiver's own; senders open it."""
        self._limit = timedelta(seconds=limit_s)
        self._backend = seat.backend
        try:
            self._store = store or join_store(StorePlace(host=seat.host, port=seat.port, key=seat.key), limit_s=limit_s)
            self._group = _make(self._store, seat, self._limit)
        except RuntimeError as error:
            raise PeerLost(f"no group of {seat.size} members within {limit_s:g} s: {_short(error)}") from error

    @property
    def uses_devices(self) -> bool:
        """Whether tensors are sent from device to device; if not, from the memory of the host."""
        return self._backend == NCCL

    def send(self, data: Tensor, peer: int, what: str) -> None:
        """Return when the data are on their way."""
        self._wait(lambda: self._group.send([data], peer, 0), f"rank {peer} to take {what}")

    def receive(self, expected: Iterable[tuple[Tensor, int, str]]) -> None:
        """Fill tensors with what peers send: (tensor, rank of the peer, what it is). From each peer they come in the
        order given; peers send at the same time."""
        works = [(self._begin(data, peer, what), peer, what) for data, peer, what in expected]
        for work, peer, what in works:
            self._wait(lambda work=work: work, f"rank {peer} to send {what}")  # type: ignore[misc]

    def _begin(self, data: Tensor, peer: int, what: str) -> Any:
        try:
            return self._group.recv([data], peer, 0)
        except RuntimeError as error:
            raise PeerLost(f"rank {peer} is gone and sends no {what}: {_short(error)}") from error

    def _wait(self, begin: Callable[[], Any], what: str) -> None:
        try:
            begin().wait(self._limit)
        except RuntimeError as error:
            raise PeerLost(f"waited for {what}, {self._limit.total_seconds():g} s at most: {_short(error)}") from error


def _make(store: dist.Store, seat: GroupSeat, limit: timedelta) -> Any:
    if seat.backend == NCCL:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, seat.rank, seat.size, options)
    return dist.ProcessGroupGloo(store, seat.rank, seat.size, limit)


def _short(error: BaseException) -> str:
    """The part of a message of torch that says what happened."""
    return str(error).partition(". This is typically")[0].rpartition("] ")[2].strip() or type(error).__name__
