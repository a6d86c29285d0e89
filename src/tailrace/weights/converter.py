"""From slices to what a worker keeps, and back: the same values, bit for bit, in another arrangement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from tailrace.weights.plan import Slice, Transfer
from tailrace.weights.sharding import Box, Holding, Piece, contains, overlap, volume


def region(box: Box, origin: tuple[int, ...]) -> tuple[slice, ...]:
    """The box as an index into a tensor whose first element is at ``origin``."""
    return tuple(slice(start - at, stop - at) for (start, stop), at in zip(box, origin, strict=True))


def cut(holding: Holding, tensors: Mapping[str, Tensor], wanted: Slice) -> Tensor:
    """A slice of what a worker keeps; a view."""
    for piece in holding.pieces:
        if piece.parameter == wanted.parameter and contains(piece.box, wanted.box):
            origin = tuple(start - at for (start, _), at in zip(piece.box, piece.offset, strict=True))
            return tensors[piece.tensor][region(wanted.box, origin)]
    raise ValueError(f"{holding.worker} does not keep {wanted.parameter} {wanted.box}")


def gather(holding: Holding, slices: Mapping[Slice, Tensor]) -> Iterator[tuple[Piece, Tensor]]:
    """Every piece of a worker, put together from slices; a slice that is a whole piece is given as it is."""
    by_parameter: dict[str, list[tuple[Box, Tensor]]] = {}
    for (parameter, box), tensor in slices.items():
        by_parameter.setdefault(parameter, []).append((box, tensor))
    for piece in holding.pieces:
        yield piece, join(piece.box, by_parameter[piece.parameter])


def join(box: Box, parts: Iterable[tuple[Box, Tensor]]) -> Tensor:
    """A box, from parts that cover it."""
    inside = [(part, tensor) for part, tensor in parts if volume(overlap(box, part)) or part == box]
    for part, tensor in inside:
        if part == box:
            return tensor
    origin = tuple(start for start, _ in box)
    joined = torch.empty([stop - start for start, stop in box], dtype=inside[0][1].dtype)
    for part, tensor in inside:
        common = overlap(box, part)
        joined[region(common, origin)] = tensor[region(common, tuple(start for start, _ in part))]
    return joined


def receive(holding: Holding, transfers: Iterable[Transfer], fetch: Callable[[Transfer], Tensor]) -> dict[str, Tensor]:
    """A worker's own tensors, made from what a plan lets it fetch."""
    slices = {transfer.slice: fetch(transfer) for transfer in transfers if transfer.receiver == holding.worker}
    tensors: dict[str, Tensor] = {}
    shapes = dict(holding.tensors)
    for piece, tensor in gather(holding, slices):
        if piece.tensor not in tensors:
            tensors[piece.tensor] = torch.empty(shapes[piece.tensor], dtype=tensor.dtype)
        box = tuple((at, at + size) for at, size in zip(piece.offset, tensor.shape, strict=True))
        tensors[piece.tensor][region(box, (0,) * len(box))] = tensor
    return tensors
