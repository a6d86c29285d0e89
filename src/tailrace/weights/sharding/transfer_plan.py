"""Plans which worker sends which slice of the model to which receiver.

Every parameter is cut at all boundaries of all boxes, of senders and receivers, so that each worker holds all of a
slice or nothing of it. Each receiver gets each slice that it holds exactly once. Slices are assigned one by one, the
largest first: to the sender that would finish it first, after the slices that were assigned to that sender before. A
plan depends on holdings and links only, so it is made once and used for every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

from tailrace.weights.sharding.table import Box, Holding, Parameter, contains


class Slice(NamedTuple):
    parameter: str
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One slice that goes from one worker to another."""

    slice: Slice
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Estimated speed of a connection: a transfer takes ``latency_s`` plus its bytes divided by ``bytes_per_s``."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: int) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


MEMORY = Connection(latency_s=1e-5, bytes_per_s=5e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    default: Connection = MEMORY
    between: Mapping[tuple[str, str], Connection] = field(default_factory=dict)
    """Links that differ from the default, by (sender, receiver)."""

    def seconds(self, sender: str, receiver: str, num_bytes: int) -> float:
        return self.between.get((sender, receiver), self.default).seconds(num_bytes)


def plan_transfers(
    parameters: Iterable[Parameter], senders: Sequence[Holding], receivers: Sequence[Holding], links: Links
) -> tuple[Transfer, ...]:
    """Return one transfer per slice and receiver, in the order in which they were assigned."""
    boxes_of = _boxes_by_worker((*senders, *receivers))
    loads = dict.fromkeys((sender.worker for sender in senders), 0.0)
    transfers = []
    for num_bytes, slice, receiver in _needed(parameters, receivers, boxes_of):
        able = [sender for sender in loads if _has(boxes_of[sender], *slice)]
        if not able:
            raise ValueError(f"no sender holds {slice.parameter} {slice.box}, which {receiver} needs")
        done_at = {sender: loads[sender] + links.seconds(sender, receiver, num_bytes) for sender in able}
        sender = min(done_at, key=done_at.__getitem__)  # the first one if several are equally fast
        loads[sender] = done_at[sender]
        transfers.append(Transfer(slice=slice, sender=sender, receiver=receiver))
    return tuple(transfers)


def _needed(
    parameters: Iterable[Parameter], receivers: Sequence[Holding], boxes_of: Mapping[str, Mapping[str, list[Box]]]
) -> list[tuple[int, Slice, str]]:
    """List (bytes, slice, receiver) of everything the receivers hold, the largest slices first."""
    parameters = list(parameters)
    needed_by = {name: receiver.worker for receiver in receivers for name in boxes_of[receiver.worker]}
    for name in sorted(needed_by.keys() - {parameter.name for parameter in parameters}):
        raise ValueError(f"{needed_by[name]} needs {name}, which is not a parameter of the published model")
    found = [
        (parameter.num_bytes(cell), Slice(parameter.name, cell), receiver.worker)
        for parameter in parameters
        for cell in _cells(parameter, [boxes.get(parameter.name, []) for boxes in boxes_of.values()])
        for receiver in receivers
        if _has(boxes_of[receiver.worker], parameter.name, cell)
    ]
    return sorted(found, key=lambda item: -item[0])


def _boxes_by_worker(holdings: Sequence[Holding]) -> dict[str, dict[str, list[Box]]]:
    """Map worker and parameter to the boxes of that parameter that the worker holds."""
    found: dict[str, dict[str, list[Box]]] = {}
    for holding in holdings:
        if holding.worker in found:
            raise ValueError(f"two holdings have the name {holding.worker!r}; each worker needs a name of its own")
        boxes = found[holding.worker] = {}
        for piece in holding.pieces:
            boxes.setdefault(piece.parameter, []).append(piece.box)
    return found


def _has(boxes: Mapping[str, list[Box]], parameter: str, box: Box) -> bool:
    return any(contains(held, box) for held in boxes.get(parameter, ()))


def _cells(parameter: Parameter, boxes: Iterable[list[Box]]) -> Iterator[Box]:
    """Cut the parameter at every boundary of every box."""
    cuts: list[set[int]] = [{0, size} for size in parameter.shape]
    for box in (box for held in boxes for box in held):
        for dim, sides in enumerate(box):
            cuts[dim].update(sides)
    yield from product(*(pairwise(sorted(sides)) for sides in cuts))
