"""Cuts slices out of a worker's tensors, and puts a worker's tensors together from slices.

Values stay the same, bit by bit, and so does their device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from tailrace.weights.sharding import Box, Holding, Piece, contains, overlap, volume
from tailrace.weights.transfer_plan import Slice, Transfer


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


def gather(holding: Holding, slices: Mapping[Slice, Tensor]) -> Iterator[tuple[Piece, Tensor]]:
    """Put every piece of a worker together from slices. A slice that is a whole piece is not copied."""
    by_parameter: dict[str, list[tuple[Box, Tensor]]] = {}
    for (parameter, box), tensor in slices.items():
        by_parameter.setdefault(parameter, []).append((box, tensor))
    for piece in holding.pieces:
        yield piece, join(piece.box, by_parameter[piece.parameter])


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
    for piece, tensor in gather(holding, slices):
        if piece.tensor not in tensors:
            tensors[piece.tensor] = torch.empty(shapes[piece.tensor], dtype=tensor.dtype, device=tensor.device)
        box = tuple((at, at + size) for at, size in zip(piece.offset, tensor.shape, strict=True))
        tensors[piece.tensor][region(box, (0,) * len(box))] = tensor
    return tensors
