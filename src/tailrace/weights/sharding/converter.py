"""Cuts slices out of a worker's tensors, and puts a worker's tensors together from slices.

Values stay the same, bit by bit, and so does their device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from tailrace.weights.sharding.table import Box, Holding, Piece, contains, overlap, volume
from tailrace.weights.sharding.transfer_plan import Slice, Transfer


def region(box: Box, origin: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index of a box in a tensor whose first element is at ``origin``."""
    return tuple(slice(start - at, stop - at) for (start, stop), at in zip(box, origin, strict=True))


def cut(holding: Holding, tensors: Mapping[str, Tensor], wanted: Slice) -> Tensor:
    """Return a view of one slice of a worker's tensors."""
    for piece in holding.pieces:
        if piece.parameter == wanted.parameter and contains(piece.box, wanted.box):
            origin = tuple(start - at for (start, _), at in zip(piece.box, piece.offset, strict=True))
            return tensors[piece.tensor][region(wanted.box, origin)]
    raise ValueError(f"{holding.worker} does not hold {wanted.parameter} {wanted.box}")


def gather(holdings: Sequence[Holding], slices: dict[Slice, Tensor]) -> Iterator[tuple[int, Piece, Tensor]]:
    """Put every piece of these workers together from slices: (number of the worker, piece, tensor).

    A slice that is a whole piece is not copied. ``slices`` is emptied, one parameter after the other, so that no more
    than one parameter is in memory twice.
    """
    wanted: dict[str, list[tuple[int, Piece]]] = {}
    for number, holding in enumerate(holdings):
        for piece in holding.pieces:
            wanted.setdefault(piece.parameter, []).append((number, piece))
    parts_of: dict[str, list[tuple[Box, Tensor]]] = {}
    while slices:
        (parameter, box), tensor = slices.popitem()
        parts_of.setdefault(parameter, []).append((box, tensor))
        del tensor
    for parameter, pieces in wanted.items():
        parts = parts_of.pop(parameter)
        for number, piece in pieces:
            yield number, piece, join(piece.box, parts)


def join(box: Box, parts: Iterable[tuple[Box, Tensor]]) -> Tensor:
    """Put a box together from parts that cover it."""
    inside = [(part, tensor) for part, tensor in parts if volume(overlap(box, part)) or part == box]
    for part, tensor in inside:
        if part == box:
            return tensor
    origin = tuple(start for start, _ in box)
    sizes = [stop - start for start, stop in box]
    joined = torch.empty(sizes, dtype=inside[0][1].dtype, device=inside[0][1].device)
    for part, tensor in inside:
        common = overlap(box, part)
        joined[region(common, origin)] = tensor[region(common, tuple(start for start, _ in part))]
    return joined


def receive(holding: Holding, transfers: Iterable[Transfer], fetch: Callable[[Transfer], Tensor]) -> dict[str, Tensor]:
    """Fetch the transfers of a plan that go to this worker, and make its tensors from them."""
    slices = {transfer.slice: fetch(transfer) for transfer in transfers if transfer.receiver == holding.worker}
    tensors: dict[str, Tensor] = {}
    shapes = dict(holding.tensors)
    for _, piece, tensor in gather([holding], slices):
        if piece.tensor not in tensors:
            tensors[piece.tensor] = torch.empty(shapes[piece.tensor], dtype=tensor.dtype, device=tensor.device)
        box = tuple((at, at + size) for at, size in zip(piece.offset, tensor.shape, strict=True))
        tensors[piece.tensor][region(box, (0,) * len(box))] = tensor
    return tensors
