"""Which worker holds which part of the model, for trainers, parameter servers and engines.

A *parameter* is a tensor of the model, by its Hugging Face name. A *worker* holds tensors of its own. Each of them
consists of *pieces*: a piece is a box of a parameter and its place in the worker's tensor.

    q_proj  [ head 0 | head 1 | head 2 | head 3 ]          worker 1 of 2, fused:
    k_proj  [ head 0 | head 1 ]                            qkv_proj  [ q 2 | q 3 | k 1 | v 1 ]
    v_proj  [ head 0 | head 1 ]

* If there are at least as many key heads as workers, query heads are divided in whole groups (the queries that share a
  key head). If not, a key or value head is held by every worker with a query that reads it.
* Together, the workers of one side hold every parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from tailrace.weights.sharding.layout import ITEM_BYTES

Box = tuple[tuple[int, int], ...]
"""A part of a tensor: (start, stop) in each dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def box(self) -> Box:
        """The box that covers the whole parameter."""
        return tuple((0, size) for size in self.shape)

    def num_bytes(self, box: Box) -> int:
        return volume(box) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    parameter: str
    box: Box
    tensor: str
    """Name of the worker's tensor."""
    offset: tuple[int, ...]
    """Index in the worker's tensor at which the box begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one worker holds. An engine with several ranks has several holdings."""

    worker: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the worker's tensors."""
    pieces: tuple[Piece, ...] = ()
    """The pieces that fill these tensors."""


class Split(Enum):
    TENSOR = "tensor"
    """Tensor parallel: by heads, columns and rows, so that each worker can compute with what it holds."""
    ROWS = "rows"
    """Fully sharded training: by rows of every parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the model is divided among the workers of one side."""

    num_workers: int = 1
    split: Split = Split.TENSOR
    is_fused: bool = False
    """Whether q, k and v are one tensor, and gate and up are one tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    num_query: int
    num_kv: int
    size: int

    def __post_init__(self) -> None:
        if self.num_query % self.num_kv:
            raise ValueError(f"{self.num_query} query heads cannot be divided evenly among {self.num_kv} key heads")

    def queries(self, worker: int, num_workers: int) -> tuple[int, int]:
        per_group = self.num_query // self.num_kv
        if self.num_kv < num_workers:
            return share(self.num_query, worker, num_workers)
        start, stop = share(self.num_kv, worker, num_workers)
        return start * per_group, stop * per_group

    def keys(self, worker: int, num_workers: int) -> tuple[int, int]:
        """Range of key heads that the worker's queries read."""
        per_group = self.num_query // self.num_kv
        start, stop = self.queries(worker, num_workers)
        return start // per_group, -(-stop // per_group)


class Unit(Enum):
    """Smallest unit that a parameter is divided into."""

    QUERY_HEAD = "query head"
    KV_HEAD = "kv head"
    INDEX = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    dim: int
    """Dimension of the weight that is divided. If it is 1 (the input), every worker holds the whole bias."""
    unit: Unit
    fused: str | None = None
    """Tensor that contains this parameter in a fused layout. Parameters lie in it in the order of the table."""


TABLE: dict[str, Rule] = {
    "embed_tokens": Rule(dim=0, unit=Unit.INDEX),
    "q_proj": Rule(dim=0, unit=Unit.QUERY_HEAD, fused="qkv_proj"),
    "k_proj": Rule(dim=0, unit=Unit.KV_HEAD, fused="qkv_proj"),
    "v_proj": Rule(dim=0, unit=Unit.KV_HEAD, fused="qkv_proj"),
    "o_proj": Rule(dim=1, unit=Unit.QUERY_HEAD),
    "gate_proj": Rule(dim=0, unit=Unit.INDEX, fused="gate_up_proj"),
    "up_proj": Rule(dim=0, unit=Unit.INDEX, fused="gate_up_proj"),
    "down_proj": Rule(dim=1, unit=Unit.INDEX),
    "lm_head": Rule(dim=0, unit=Unit.INDEX),
}
"""Rules by the last part of the module's name. Parameters of other modules (norms) are held whole by every worker."""
_PLACES = {module: place for place, module in enumerate(TABLE)}


def whole(parameters: Iterable[Parameter], worker: str) -> Holding:
    """Return the holding of a worker that holds every parameter unchanged."""
    return _hold(worker, [(parameter, parameter.box, parameter.name) for parameter in parameters])


def holdings(parameters: Sequence[Parameter], heads: Heads, scheme: Scheme, *, side: str) -> tuple[Holding, ...]:
    """Return what each worker of a side holds."""
    return tuple(
        _hold(
            f"{side} {worker}",
            [
                (parameter, box, _tensor_name(parameter.name, scheme))
                for parameter in sorted(parameters, key=_place)
                if volume(box := _box(parameter, heads, scheme, worker))
            ],
        )
        for worker in range(scheme.num_workers)
    )


def share(total: int, worker: int, num_workers: int) -> tuple[int, int]:
    """Return a worker's range of ``total`` consecutive items. Sizes of ranges differ by at most one."""
    return total * worker // num_workers, total * (worker + 1) // num_workers


def volume(box: Box) -> int:
    return math.prod(max(stop - start, 0) for start, stop in box)


def overlap(one: Box, other: Box) -> Box:
    return tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True))


def contains(outer: Box, inner: Box) -> bool:
    return all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(outer, inner, strict=True))


def _hold(worker: str, parts: list[tuple[Parameter, Box, str]]) -> Holding:
    """Make a holding. Boxes that go to the same tensor follow each other along its first dimension."""
    tensors: dict[str, tuple[int, ...]] = {}
    pieces = []
    for parameter, box, tensor in parts:
        shape = tuple(stop - start for start, stop in box)
        length = tensors[tensor][0] if tensor in tensors else 0
        pieces.append(
            Piece(parameter=parameter.name, box=box, tensor=tensor, offset=(length, *[0] * (len(box) - 1))[: len(box)])
        )
        tensors[tensor] = (length + shape[0], *shape[1:]) if shape else ()
    return Holding(worker=worker, tensors=tuple(tensors.items()), pieces=tuple(pieces))


def _box(parameter: Parameter, heads: Heads, scheme: Scheme, worker: int) -> Box:
    split = _split(parameter, heads, scheme, worker)
    if split is None:
        return parameter.box
    dim, part = split
    return (*parameter.box[:dim], part, *parameter.box[dim + 1 :])


def _split(parameter: Parameter, heads: Heads, scheme: Scheme, worker: int) -> tuple[int, tuple[int, int]] | None:
    """Return (dimension, (start, stop)) of the worker's part, or None if it holds the whole parameter."""
    if scheme.split is Split.ROWS:
        return (0, share(parameter.shape[0], worker, scheme.num_workers)) if parameter.shape else None
    rule = TABLE.get(_module(parameter.name))
    if rule is None or rule.dim >= len(parameter.shape):
        return None
    if rule.unit is Unit.INDEX:
        return rule.dim, share(parameter.shape[rule.dim], worker, scheme.num_workers)
    of = heads.queries if rule.unit is Unit.QUERY_HEAD else heads.keys
    start, stop = of(worker, scheme.num_workers)
    return rule.dim, (start * heads.size, stop * heads.size)


def _tensor_name(name: str, scheme: Scheme) -> str:
    module = _module(name)
    fused = TABLE[module].fused if scheme.is_fused and module in TABLE else None
    return name if fused is None else name.replace(f".{module}.", f".{fused}.")


def _place(parameter: Parameter) -> int:
    return _PLACES.get(_module(parameter.name), len(_PLACES))


def _module(name: str) -> str:
    """Return the last part of the module's name: ``q_proj`` for ``model.layers.0.self_attn.q_proj.weight``."""
    return name.split(".")[-2] if "." in name else name
