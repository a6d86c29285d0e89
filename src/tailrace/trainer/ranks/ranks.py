"""The processes that train one model together, as the trainer sees them.

A *rank* is one of them. Ranks form a table of replicas and shards:

                shard 0   shard 1
    replica 0   rank 0    rank 1      a replica holds the whole model, each of its ranks one part
    replica 1   rank 2    rank 3

* Every rank is given the same samples and computes the gradient of its share of them. Gradients and sums are added,
  never averaged, so the shares may be as uneven as they like.
* With tensor parallelism each place of the table has several ranks. They compute the same samples, each with a part of
  every layer (``tensor_parallel.py``).
* Until the optimizer step nothing passes between replicas: one can train while another does something else.

``Alone`` is the one rank of a trainer that has no others. ``process_ranks.py`` has ranks that are processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

Thing = TypeVar("Thing")
Run = Callable[..., Any]
"""Calls a function of a model, with the function and its arguments given. All ranks of a replica call it together."""


class AnyGradients(Protocol):
    """The gradients of a model's parameters, wherever they are."""

    def of(self, parameter: Tensor) -> Tensor | None:
        """None: it has none. Changes to it are changes to the gradient."""
        ...

    def zeros(self, parameter: Tensor) -> Tensor:
        """Give a parameter without a gradient one of zeros."""
        ...


class Ranks(Protocol):
    index: int
    size: int
    """Number of ranks in all replicas."""
    num_replicas: int
    publishes: bool
    """Whether this rank is in the replica whose weights are published."""

    def shard(self, model: torch.nn.Module, dtype: torch.dtype | None) -> Run:
        """Divide the model's parameters, in place, among the ranks of each replica. ``dtype``: precision to compute
        in; None: that of the parameters. Several ranks hold them in fp32 on their own devices, wherever the model was.
        """
        ...

    def share(self, costs: Sequence[int], replicas: Sequence[int]) -> tuple[int, int]:
        """The range of these items that this rank works on, if some replicas divide them among themselves."""
        ...

    def most(self, count: int) -> int:
        """Return the largest count that a rank of this replica has."""
        ...

    def gather(self, thing: Thing, *, by_samples: bool = False) -> list[Thing]:
        """Return what every rank gives, in their order. It must be a value that JSON can hold. ``by_samples``: only the
        first of ranks that compute the same samples counts."""
        ...

    def by_tokens(self, function: Callable[..., Any], *tensors: Tensor) -> Any:
        """Call a function of tokens: tensors with an entry for each token go in and come out. Ranks that compute the
        same samples divide the tokens among themselves."""
        ...

    def add_up(self, model: torch.nn.Module, gradients: AnyGradients) -> None:
        """Add up the gradients of all replicas, and those of ranks that have each computed a part of one."""
        ...

    def divided_on_host(self, parameter: Tensor, mine: Tensor) -> Tensor:
        """A tensor whose parts are in the memory of the hosts, divided among ranks as the parameter is. ``mine``: this
        rank's part."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a parameter's whole value. All ranks of a replica call it together, and always from the same thread,
        whichever that is."""
        ...

    def put_off(self, is_put_off: bool) -> None:
        """Whether backward passes keep whole gradients to themselves. The next pass after that adds up all of them."""
        ...

    def forget_gradients(self) -> None:
        """Forget gradients that backward passes have kept to themselves. A rank can do it by itself."""
        ...


class Alone:
    index, size, num_replicas, publishes = 0, 1, 1, True

    def shard(self, model: torch.nn.Module, dtype: torch.dtype | None) -> Run:
        return call

    def share(self, costs: Sequence[int], replicas: Sequence[int]) -> tuple[int, int]:
        return 0, len(costs)

    def most(self, count: int) -> int:
        return count

    def gather(self, thing: Thing, *, by_samples: bool = False) -> list[Thing]:
        return [thing]

    def by_tokens(self, function: Callable[..., Any], *tensors: Tensor) -> Any:
        return function(*tensors)

    def add_up(self, model: torch.nn.Module, gradients: AnyGradients) -> None:
        pass

    def divided_on_host(self, parameter: Tensor, mine: Tensor) -> Tensor:
        return mine

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor

    def put_off(self, is_put_off: bool) -> None:
        pass

    def forget_gradients(self) -> None:
        pass


ALONE = Alone()


def call(function: Callable[..., Thing], *given: Any) -> Thing:
    return function(*given)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds. Changes to it are changes to the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def divide(costs: Sequence[int], num_parts: int) -> list[tuple[int, int]]:
    """Cut items in a row into as many ranges [start, end) of nearly the same cost. Neighbours stay together, because
    the responses of one prompt are neighbours and share it."""
    ends = np.cumsum(np.asarray(costs, np.float64))
    total = float(ends[-1]) if len(ends) else 0.0
    middles = ends - np.asarray(costs, np.float64) / 2
    borders = [int(np.searchsorted(middles, total * part / num_parts)) for part in range(num_parts + 1)]
    borders[0], borders[-1] = 0, len(costs)
    return list(itertools.pairwise(borders))
