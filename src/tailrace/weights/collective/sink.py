"""The sending side of the collective channel: what one training rank publishes, and how it answers receivers.

A rank keeps its own part of the two newest versions; nothing is gathered. It listens on a port, and has a thread for
each receiver that is connected:

    describe    which parts this rank holds
    join        take a seat in the receiver's group (``peer_group.py``)
    versions    which versions are complete here
    hold        keep a version until the next question
    send        send slices of that version through the group, in the order asked

* A publish waits for nobody: it makes a new copy and forgets the oldest. A version that is being sent is kept until
  it is sent.
* A receiver that ends or stays silent loses its connection and its group, and nothing else happens.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.address import COLLECTIVE, ChannelAddress
from tailrace.weights.collective.control_socket import ControlSocket, Message, PeerLost
from tailrace.weights.collective.own_address import own_address
from tailrace.weights.collective.peer_group import RECEIVER, GroupSeat, PeerGroup, close_at_exit
from tailrace.weights.sharding.converter import cut
from tailrace.weights.sharding.shards import ParameterPart, holding
from tailrace.weights.sharding.transfer_plan import Slice

LIMIT_S = 60.0
"""Longest silence of a peer in the middle of a pull."""
CLOSE_LIMIT_S = 2.0
"""Longest time that a sink which is closed waits for a thread that sends."""


class CollectiveSink:
    """The writer's end of a channel on one rank. All ranks publish the same versions, each its own parts."""

    def __init__(self, parts: Sequence[ParameterPart], device: torch.device, *, limit_s: float = LIMIT_S) -> None:
        self._parts = {part.parameter.name: part for part in parts}
        self._holding = holding("here", parts)
        self._device, self._limit_s = device, limit_s
        self._versions: dict[Version, Mapping[str, Tensor]] = {}
        self._lock = threading.Lock()
        self._key = secrets.token_hex(32)
        host = own_address()
        self._listener = socket.create_server((host, 0))
        self.endpoint = f"{host}:{self._listener.getsockname()[1]}/{self._key}"
        """Where receivers reach this rank, and the key that they must know."""
        self._endpoints: tuple[str, ...] = (self.endpoint,)
        self._connections: dict[ControlSocket, threading.Thread] = {}
        close_at_exit(self)
        threading.Thread(target=self._accept, name="weight-receivers", daemon=True).start()

    @property
    def address(self) -> ChannelAddress:
        return ChannelAddress(kind=COLLECTIVE, location=",".join(self._endpoints))

    def join(self, endpoints: Iterable[str]) -> None:
        """Tell this rank the endpoints of all ranks, its own included. They are the address of the channel."""
        self._endpoints = tuple(endpoints)

    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        with self._lock:
            newest = max(self._versions, default=None)
            if newest is not None and version <= newest:
                raise ValueError(f"cannot publish version {version} after version {newest}: versions only grow")
            # Every rank has published the newest version, else nobody would publish the next one.
            self._versions = {each: held for each, held in self._versions.items() if each == newest}
        copies: dict[str, Tensor] = {}
        for name, tensor in weights:
            self._check(name, tensor, copies)
            copies[name] = tensor.detach().to(self._device, copy=True)
        if missing := [name for name in self._parts if name not in copies]:
            raise ValueError(f"{len(missing)} tensors are missing, the first one is {missing[0]}")
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        with self._lock:
            self._versions[version] = copies

    def close(self) -> None:
        _end_listener(self._listener)
        with self._lock:
            self._versions = {}
            connections = list(self._connections.items())
        for connection, _ in connections:
            connection.end()
        for _, thread in connections:
            thread.join(CLOSE_LIMIT_S)

    def _check(self, name: str, tensor: Tensor, given: Mapping[str, Tensor]) -> None:
        part = self._parts.get(name)
        if part is None or name in given:
            raise ValueError(f"{name} is not in the layout, or was given twice")
        found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        expected = (tuple(stop - start for start, stop in part.box), part.parameter.dtype)
        if found != expected:
            raise ValueError(f"{name} is {found}, but the layout has {expected}")

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the channel is closed
            control = ControlSocket(connection, "the receiver")
            thread = threading.Thread(target=self._serve, args=(control,), name="weight-sender", daemon=True)
            with self._lock:
                self._connections[control] = thread
                thread.start()

    def _serve(self, control: ControlSocket) -> None:
        try:
            control.verify(self._key, limit_s=self._limit_s)
            Sender(self, control, self._limit_s).answer()
        except PeerLost as lost:
            print(f"a receiver of weights is gone: {lost}", flush=True)
        finally:
            control.close()
            with self._lock:
                self._connections.pop(control, None)

    def describe(self) -> Message:
        parts = [[p.name, p.shape, p.dtype, box] for p, box in self._parts.values()]
        return {"parts": parts, "device": device_name(self._device)}

    def held(self) -> dict[Version, Mapping[str, Tensor]]:
        """The versions that are complete here."""
        with self._lock:
            return dict(self._versions)

    def part(self, tensors: Mapping[str, Tensor], one: Slice) -> Tensor:
        return cut(self._holding, tensors, one)

    @property
    def device(self) -> torch.device:
        return self._device


class Sender:
    """Answers one receiver."""

    def __init__(self, sink: CollectiveSink, control: ControlSocket, limit_s: float) -> None:
        self._sink, self._control, self._limit_s = sink, control, limit_s
        self._group: PeerGroup | None = None
        self._stream = torch.cuda.Stream(sink.device) if sink.device.type == "cuda" else None

    def answer(self) -> None:
        """Answer until the receiver ends."""
        held: tuple[Version, Mapping[str, Tensor]] | None = None
        while True:
            try:
                asked = self._control.receive("a question", limit_s=None)
            except PeerLost:
                return  # the receiver has ended between two pulls
            match asked:
                case {"ask": "describe"}:
                    self._say(self._sink.describe())
                case {"ask": "join", "seat": seat}:
                    self._group = PeerGroup(GroupSeat(**seat), limit_s=self._limit_s)
                    self._say({})
                case {"ask": "versions"}:
                    held = None
                    self._say({"versions": sorted(self._sink.held())})
                case {"ask": "hold", "version": version}:
                    tensors = self._sink.held().get(Version(version))
                    held = None if tensors is None else (Version(version), tensors)
                    self._say({"is_held": held is not None})
                case {"ask": "send", "slices": slices} if held is not None:
                    self._send(*held, slices)
                    held = None
                case _:
                    raise PeerLost(f"a question that cannot be answered: {str(asked)[:80]}")

    def _say(self, message: Message) -> None:
        self._control.send(message, limit_s=self._limit_s)

    def _send(self, version: Version, tensors: Mapping[str, Tensor], slices: Sequence[Any]) -> None:
        assert self._group is not None, "a receiver forms a group before it asks for slices"
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            for name, box in slices:
                one = Slice(name, tuple((start, stop) for start, stop in box))
                data = as_bytes(self._sink.part(tensors, one))
                data = data if self._group.uses_devices else data.cpu()
                self._group.send(data, RECEIVER, f"{name} of version {version}")


def as_bytes(tensor: Tensor) -> Tensor:
    """The values one after another, as bytes."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def device_name(device: torch.device) -> str:
    """Name of the device, the same in every process."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else "cpu"


def _end_listener(listener: socket.socket) -> None:
    """Close a listening socket, also for the thread that waits at it."""
    with suppress(OSError):  # where that is not possible, closing is enough
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
