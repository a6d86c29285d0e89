"""The parts of the model that a training rank holds, as boxes, read off its sharded tensors (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from tailrace.weights.sharding.layout import WeightLayout
from tailrace.weights.sharding.table import Box, Holding, Parameter, Piece, volume


class ParameterPart(NamedTuple):
    """The part of a parameter that one worker holds, as a tensor of its own."""

    parameter: Parameter
    box: Box


class NotInRows(ValueError):
    """A tensor is divided in another way than by rows."""


def local_parts(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[ParameterPart, Tensor]]:
    """Each parameter's part here. Parts without elements are left out. Raises ``NotInRows``."""
    for name, tensor in weights:
        dtype = str(tensor.dtype).removeprefix("torch.")
        parameter = Parameter(name=name, shape=tuple(tensor.shape), dtype=dtype)
        if not isinstance(tensor, DTensor):
            yield ParameterPart(parameter, parameter.box), tensor
            continue
        part, local = ParameterPart(parameter, _rows(name, tensor)), tensor.to_local()
        if tuple(local.shape) != tuple(stop - start for start, stop in part.box):
            raise NotInRows(f"{name}: {tuple(local.shape)} is not the part {part.box}")
        if volume(part.box):
            yield part, local


def whole_parts(layout: WeightLayout) -> list[ParameterPart]:
    """The parts of a worker that holds every parameter whole."""
    return [
        ParameterPart(Parameter(name=entry.name, shape=entry.shape, dtype=entry.dtype), entry.box)
        for entry in layout.entries
    ]


def holding(worker: str, parts: Iterable[ParameterPart]) -> Holding:
    """Each part is a tensor of the worker, named after its parameter."""
    pieces = [Piece(parameter=p.name, box=box, tensor=p.name, offset=(0,) * len(box)) for p, box in parts]
    tensors = tuple((piece.tensor, tuple(stop - start for start, stop in piece.box)) for piece in pieces)
    return Holding(worker=worker, tensors=tensors, pieces=tuple(pieces))


def _rows(name: str, tensor: DTensor) -> Box:
    """The box of this rank, if rows are dealt out in chunks of equal size as far as they go."""
    if tensor.device_mesh.ndim != 1 or tuple(tensor.placements) != (Shard(0),):
        raise NotInRows(f"{name} is divided as {tensor.placements}")
    num_rows, *rest = tensor.shape
    chunk = -(-num_rows // tensor.device_mesh.size())
    start = min(tensor.device_mesh.get_local_rank() * chunk, num_rows)
    return ((start, min(start + chunk, num_rows)), *((0, size) for size in rest))
