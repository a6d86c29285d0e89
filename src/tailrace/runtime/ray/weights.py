"""A weight channel through Ray's object store. `weights/channel.py` says what every channel promises.

    training actor     puts each parameter of a version into the object store of its node, and keeps the references
    rollout actor      asks the training actor for the references of the newest version, and gets the objects

Ray copies an object to another node once, however many actors read it there; they share its memory. The objects belong
to the training actor: when it dies, a fetch raises ``WriterLost``. Nothing is overwritten, so nobody waits. The objects
of a version live as long as somebody has their references: the newest version, and what is being read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.weights.address import RAY_OBJECT_STORE, ChannelAddress
from tailrace.weights.channel import Fetched, VersionNotPublished, WriterLost
from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sharding.stored_bytes import copy_box
from tailrace.weights.sharding.table import Holding, Parameter, whole
from tailrace.weights.sharding.transfer_plan import Transfer

SENDER = "training actor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One version: references to its parameters, by name."""

    version: Version
    parameters: dict[str, Any]


class ObjectStoreSink:
    """The writer of a channel. Its actor answers ``newest`` from another thread."""

    def __init__(self, layout: WeightLayout) -> None:
        self.layout = layout
        self._entries = {entry.name: entry for entry in layout.entries}
        self._newest: Publication | None = None
        self._lock = threading.Lock()
        name = ray.get_runtime_context().get_actor_name()
        assert name, "the actor of a weight channel has a name"
        self.address = ChannelAddress(kind=RAY_OBJECT_STORE, location=name)

    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        before = self.newest()
        if before is not None and version <= before.version:
            raise ValueError(f"cannot publish version {version} after version {before.version}: versions only grow")
        parameters: dict[str, Any] = {}
        for name, tensor in weights:
            self._check(name, tensor, parameters)
            parameters[name] = ray.put(_as_bytes(tensor))
        if missing := [name for name in self._entries if name not in parameters]:
            raise ValueError(f"{len(missing)} tensors are missing, the first one is {missing[0]}")
        with self._lock:
            self._newest = Publication(version=version, parameters=parameters)

    def newest(self) -> Publication | None:
        with self._lock:
            return self._newest

    def close(self) -> None:
        with self._lock:
            self._newest = None

    def _check(self, name: str, tensor: Tensor, given: dict[str, Any]) -> None:
        entry = self._entries.get(name)
        if entry is None or name in given:
            raise ValueError(f"{name} is not in the layout, or was given twice")
        found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if found != (entry.shape, entry.dtype):
            raise ValueError(f"{name} is {found}, but the layout has {(entry.shape, entry.dtype)}")


class ObjectStoreSource:
    """One reader of a channel."""

    def __init__(self, actor_name: str) -> None:
        try:
            self._writer = ray.get_actor(actor_name)
        except ValueError as error:
            raise WriterLost(f"the actor that publishes the weights has ended: {error}") from error
        self._layout: WeightLayout = _ask(self._writer.weight_layout.remote())
        self._entries = {entry.name: entry for entry in self._layout.entries}

    def parameters(self) -> list[Parameter]:
        entries = self._layout.entries
        return [Parameter(name=entry.name, shape=entry.shape, dtype=entry.dtype) for entry in entries]

    def senders(self) -> list[Holding]:
        return [whole(self.parameters(), SENDER)]

    def fetch(self, minimum_version: Version, transfers: Sequence[Transfer]) -> Fetched:
        """Copy these slices of the newest version, and no other bytes. Only parameters that are needed come to this
        node."""
        newest: Publication | None = _ask(self._writer.newest_weights.remote())
        if newest is None or newest.version < minimum_version:
            held = "none yet" if newest is None else str(newest.version)
            raise VersionNotPublished(f"version {minimum_version} is not published; the channel holds {held}")
        slices = list(dict.fromkeys(transfer.slice for transfer in transfers))
        names = list(dict.fromkeys(one.parameter for one in slices))
        found = dict(zip(names, _ask([newest.parameters[name] for name in names]), strict=True))
        # The objects' memory belongs to the whole node and cannot be written; the caller gets copies of its slices.
        copies = {one: copy_box(found[one.parameter], self._entries[one.parameter], one.box) for one in slices}
        return Fetched(newest.version, copies)

    def close(self) -> None:
        pass


def _ask(references: Any) -> Any:
    try:
        return ray.get(references)
    except ray.exceptions.RayError as error:
        raise WriterLost(f"the actor that publishes the weights has ended: {type(error).__name__}") from error


def _as_bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
