"""Who sends which slice of the model to whom.

Parameters are cut wherever any worker's box begins or ends, so a slice is either all of somebody's or nobody's. Each
receiver gets the slices it keeps, each of them once, from the sender that would be done with it first, given what it
was asked to send already. The largest slices are given out first. A plan depends on layouts and links only: it is
made once and used for every version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple

from tailrace.weights.sharding import Box, Holding, Parameter, contains


class Slice(NamedTuple):
    parameter: str
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    slice: Slice
    sender: str
    receiver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What it takes to send: ``latency_s`` and the bytes over ``bytes_per_s``."""

    latency_s: float
    bytes_per_s: float

    def seconds(self, num_bytes: int) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


MEMORY = Link(latency_s=1e-5, bytes_per_s=5e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    usual: Link = MEMORY
    between: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    """Other links, by sender and receiver."""

    def seconds(self, sender: str, receiver: str, num_bytes: int) -> float:
        return self.between.get((sender, receiver), self.usual).seconds(num_bytes)


def plan(
    parameters: Iterable[Parameter], senders: Sequence[Holding], receivers: Sequence[Holding], links: Links
) -> tuple[Transfer, ...]:
    """In the order the slices were given out."""
    parameters = list(parameters)
    boxes_of = {holding.worker: _boxes(holding) for holding in (*senders, *receivers)}
    needed = {name: receiver.worker for receiver in receivers for name in boxes_of[receiver.worker]}
    for name in sorted(needed.keys() - {parameter.name for parameter in parameters}):
        raise ValueError(f"{name}, which {needed[name]} needs, is no parameter of the model that is sent")
    wanted: list[tuple[int, Slice, str]] = []
    for parameter in parameters:
        for cell in _cells(parameter, [boxes.get(parameter.name, []) for boxes in boxes_of.values()]):
            needed_by = [r.worker for r in receivers if _has(boxes_of[r.worker], parameter.name, cell)]
            wanted += [(parameter.num_bytes(cell), Slice(parameter.name, cell), receiver) for receiver in needed_by]
    loads = dict.fromkeys((sender.worker for sender in senders), 0.0)
    transfers = []
    for num_bytes, slice, receiver in sorted(wanted, key=lambda item: -item[0]):
        able = [s.worker for s in senders if _has(boxes_of[s.worker], *slice)]
        if not able:
            raise ValueError(f"nobody sends {slice.parameter} {slice.box}, which {receiver} needs")
        done_at = {sender: loads[sender] + links.seconds(sender, receiver, num_bytes) for sender in able}
        sender = min(done_at, key=done_at.__getitem__)  # of equals the first
        loads[sender] = done_at[sender]
        transfers.append(Transfer(slice=slice, sender=sender, receiver=receiver))
    return tuple(transfers)


def _boxes(holding: Holding) -> dict[str, list[Box]]:
    found: dict[str, list[Box]] = {}
    for piece in holding.pieces:
        found.setdefault(piece.parameter, []).append(piece.box)
    return found


def _has(boxes: Mapping[str, list[Box]], parameter: str, box: Box) -> bool:
    return any(contains(held, box) for held in boxes.get(parameter, ()))


def _cells(parameter: Parameter, boxes: Iterable[list[Box]]) -> Iterator[Box]:
    """The parameter, cut at every side of every box."""
    cuts: list[set[int]] = [{0, size} for size in parameter.shape]
    for box in (box for held in boxes for box in held):
        for dim, sides in enumerate(box):
            cuts[dim].update(sides)
    yield from product(*(pairwise(sorted(sides)) for sides in cuts))
