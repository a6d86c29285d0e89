"""The receiving side of the collective channel: fetches slices from the ranks that hold them, through a group.

A fetch asks all senders which versions they have complete, takes the newest that all have, lets each hold it, and then
receives the slices. If a sender is lost or stays silent, the fetch fails with ``WriterLost`` and a sentence; the next
one connects again and forms a new group. ``sink.py`` describes the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.channel import Fetched, VersionNotPublished, WriterLost
from tailrace.weights.collective.control_socket import ControlSocket, Message, PeerLost
from tailrace.weights.collective.peer_group import GLOO, NCCL, GroupSeat, PeerGroup, close_at_exit
from tailrace.weights.collective.run_store import open_store
from tailrace.weights.collective.sink import LIMIT_S, device_name
from tailrace.weights.sharding.shards import ParameterPart, holding
from tailrace.weights.sharding.table import Holding, Parameter, volume
from tailrace.weights.sharding.transfer_plan import Slice, Transfer

Result = TypeVar("Result")
MAX_TRIES = 100
"""Number of times that a version may be replaced between two questions before a fetch fails."""


class CollectiveSource:
    """One receiver's end of a channel."""

    def __init__(self, location: str, device: torch.device, *, limit_s: float = LIMIT_S) -> None:
        self._endpoints, self._device, self._limit_s = location.split(","), device, limit_s
        self._senders: list[ControlSocket] = []
        self._group: PeerGroup | None = None
        self._holdings: list[Holding] = []
        self._parameters: dict[str, Parameter] = {}
        self._backend = GLOO
        close_at_exit(self)
        self._with_senders(lambda: None)  # what they hold is needed for a plan

    def parameters(self) -> list[Parameter]:
        return list(self._parameters.values())

    def senders(self) -> list[Holding]:
        return self._holdings

    def latest_version(self) -> Version | None:
        """The newest version that is complete on all ranks."""
        return self._with_senders(self._newest)

    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched:
        """A slice that several receivers need is fetched once."""
        wanted = {transfer.slice: transfer.sender for transfer in reversed(transfers)}
        return self._with_senders(lambda: self._fetch(minimum_version, wanted))

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
        self._senders, self._group = [], None

    def _with_senders(self, work: Callable[[], Result]) -> Result:
        """Do something with all senders connected. If one is lost, all connections are closed."""
        try:
            if not self._senders:
                self._connect()
            return work()
        except PeerLost as lost:
            self.close()
            raise WriterLost(f"weights cannot be fetched: {lost}") from lost
        except VersionNotPublished:
            raise  # nothing was asked for, so the connections can stay
        except BaseException:
            self.close()  # a sender may be in the middle of sending
            raise

    def _connect(self) -> None:
        for number, endpoint in enumerate(self._endpoints):
            where, _, key = endpoint.partition("/")
            host, _, port = where.rpartition(":")
            name = sender_name(number)
            self._senders.append(ControlSocket.connect(host, int(port), peer=name, limit_s=self._limit_s))
            self._senders[-1].prove(key, limit_s=self._limit_s)
        if not self._holdings:
            self._describe(self._ask_all({"ask": "describe"}, "a description of its parts"))

    def _describe(self, answers: Sequence[Message]) -> None:
        for number, answer in enumerate(answers):
            parts = [
                ParameterPart(Parameter(name=name, shape=tuple(shape), dtype=dtype), tuple((a, b) for a, b in box))
                for name, shape, dtype, box in answer["parts"]
            ]
            self._parameters |= {part.parameter.name: part.parameter for part in parts}
            self._holdings.append(holding(sender_name(number), parts))
        self._backend = backend_for([device_name(self._device), *(answer["device"] for answer in answers)])

    def _newest(self) -> Version | None:
        """The newest version that all senders have complete; None: one of them has none yet."""
        for _ in range(MAX_TRIES):
            versions = [set(answer["versions"]) for answer in self._ask_all({"ask": "versions"}, "its versions")]
            if common := set.intersection(*versions):
                return Version(max(common))
            if not all(versions):
                return None
            # While one answered, another one published twice.
        raise PeerLost(f"the senders had no version in common, {MAX_TRIES} times")

    def _fetch(self, minimum_version: Version, wanted: dict[Slice, str]) -> Fetched:
        for _ in range(MAX_TRIES):
            newest = self._newest()
            if newest is None or newest < minimum_version:
                held = "none yet" if newest is None else str(newest)
                raise VersionNotPublished(f"version {minimum_version} is not published; the channel holds {held}")
            answers = self._ask_all({"ask": "hold", "version": newest}, f"version {newest} to be held")
            if all(answer["is_held"] for answer in answers):
                return Fetched(newest, dict(self._receive(newest, wanted)))
        raise PeerLost(f"all of {MAX_TRIES} versions were replaced before they could be fetched")

    def _receive(self, version: Version, wanted: dict[Slice, str]) -> Iterator[tuple[Slice, Tensor]]:
        group, slices_of = self._joined(), {sender.worker: list[Slice]() for sender in self._holdings}
        buffers = {one: self._buffer(one, group) for one in wanted}
        for one, name in wanted.items():
            if volume(one.box):
                slices_of[name].append(one)
        for sender, slices in zip(self._senders, slices_of.values(), strict=True):
            sender.send({"ask": "send", "slices": slices}, limit_s=self._limit_s)
        group.receive(
            (buffers[one], rank, f"{one.parameter} of version {version}")
            for rank, slices in enumerate(slices_of.values(), start=1)
            for one in slices
        )
        for one, data in buffers.items():
            shape = [stop - start for start, stop in one.box]
            yield one, data.view(getattr(torch, self._parameters[one.parameter].dtype)).view(shape)

    def _buffer(self, one: Slice, group: PeerGroup) -> Tensor:
        device = self._device if group.uses_devices else torch.device("cpu")
        return torch.empty(self._parameters[one.parameter].num_bytes(one.box), dtype=torch.uint8, device=device)

    def _joined(self) -> PeerGroup:
        """The group with all senders. It is formed when it is first needed, and again after a loss."""
        if self._group is not None:
            return self._group
        size, store = 1 + len(self._senders), open_store(limit_s=self._limit_s)
        seats = [GroupSeat(**asdict(store.place), rank=n, size=size, backend=self._backend) for n in range(size)]
        for sender, seat in zip(self._senders, seats[1:], strict=True):
            sender.send({"ask": "join", "seat": asdict(seat)}, limit_s=self._limit_s)
        group = PeerGroup(seats[0], limit_s=self._limit_s, store=store)
        for sender in self._senders:
            sender.receive("its seat in a group", limit_s=self._limit_s)
        self._group = group
        return group

    def _ask_all(self, message: Message, what: str) -> list[Message]:
        for sender in self._senders:
            sender.send(message, limit_s=self._limit_s)
        return [sender.receive(what, limit_s=self._limit_s) for sender in self._senders]


def sender_name(number: int) -> str:
    return f"training rank {number}"


def backend_for(devices: Sequence[str]) -> str:
    """The backend for members on these devices, by name; the receiver is the first."""
    if not all(device.startswith("GPU-") for device in devices):
        return GLOO
    if len(set(devices)) < len(devices):
        raise ValueError(
            "two members of the weight channel are on one GPU, which NCCL refuses;"
            ' trainer.weight_channel = "shared-memory" works there'
        )
    return NCCL
