"""Tensor parallelism: the ranks of a tensor group compute the same samples, each with a part of every layer.

U nodes of a tree of tokens, N response tokens, D hidden width.

    embedding   all tokens on every rank
    layer       q, k, v, gate and up by columns, o and down by rows (DTensor): each rank has some heads and a part of
                the MLP, and what ranks find is added up after o and after down
    last norm   all tokens on every rank
    head        each rank scores its share of the response tokens, with the whole vocabulary

Gradients, so that those of one process come out:

* Norms inside a layer see the same on every rank and get the same, whole gradient.
* Norms of single heads (Qwen3) see a rank's own heads. Their gradients are added up before the optimizer step.
* Embedding, last norm and head are divided among all ranks of the replica, whose gradients FSDP2 adds up. So each rank
  must give a part: that of its own tokens at the head, and an equal part at the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_map

from tailrace.trainer.ranks.ranks import AnyGradients, local

HEAD_NORMS = ("q_norm.weight", "k_norm.weight")


def divide_layer(layer: nn.Module, mesh: DeviceMesh) -> None:
    """Divide a layer among the ranks of a tensor group, in place."""
    parallelize_module(layer, mesh, _styles(), src_data_rank=None)  # every rank has read the same weights


def share_ends(model: nn.Module, mesh: DeviceMesh) -> None:
    """Let ranks of a tensor group share the gradients of what comes before and after the divided layers."""
    [body] = [module for module in model.modules() if hasattr(module, "embed_tokens") and hasattr(module, "layers")]
    group = mesh.get_group()
    body.embed_tokens.register_forward_hook(lambda _, __, found: _EqualParts.apply(found, group))
    body.norm.register_forward_pre_hook(lambda _, given: _AddedUp.apply(given[0], group))


def _styles() -> dict[str, ParallelStyle]:
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    whole = Replicate()
    return {
        # Once for all projections that read it: the gradient is then added up once.
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": whole}, desired_input_kwarg_layouts={"hidden_states": whole}
        ),
        "mlp": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
        **{name: ColwiseParallel() for name in columns},
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }


def add_head_norms(model: nn.Module, mesh: DeviceMesh, gradients: AnyGradients) -> None:
    """Add up the gradients of norms that see only the heads of one rank."""
    for name, parameter in model.named_parameters():
        gradient = gradients.of(parameter)
        if name.endswith(HEAD_NORMS) and gradient is not None:
            dist.all_reduce(local(gradient), group=mesh.get_group())


def by_tokens(function: Callable[..., Any], tensors: tuple[Tensor, ...], mesh: DeviceMesh) -> Any:
    """What a function finds for N tokens, if each rank of a tensor group calls it with its share of them.

    The function returns one tensor or a tuple of them, with an entry for each token.
    """
    group = mesh.get_group()
    sizes = [len(share) for share in tensors[0].detach().tensor_split(mesh.size())]
    start = sum(sizes[: mesh.get_local_rank()])
    end = start + sizes[mesh.get_local_rank()]
    found = function(*(tensor[start:end] for tensor in tensors))
    return tree_map(lambda mine: _Gathered.apply(mine, sizes, (start, end), group), found)


class _EqualParts(torch.autograd.Function):
    """The same forward; backward, an equal part of the gradient for each rank."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.size = group.size()
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.size, None


class _AddedUp(torch.autograd.Function):
    """The same forward; backward, the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Gathered(torch.autograd.Function):
    """What all ranks have, one after the other; backward, the gradient of one's own, since every rank has all of it."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, sizes: list[int], place: tuple[int, int], group: dist.ProcessGroup) -> Tensor:
        ctx.place = place
        padded = mine.new_zeros(max(sizes), *mine.shape[1:])
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        start, end = ctx.place
        return gradients[0][start:end], None, None, None
