"""Ranks that are processes: FSDP2 shards the model inside a replica, torch.distributed carries the rest.

Three kinds of groups, because a group may be used by one thread at a time and in the same order on every rank:

    training     messages of FSDP2 and of tensor parallelism, inside a replica
    control      small values as JSON, and gradients between replicas
    publishing   whole parameters, gathered by the thread that publishes weights
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map
from transformers.modeling_layers import GradientCheckpointingLayer

from tailrace.trainer.ranks import tensor_parallel
from tailrace.trainer.ranks.rank_meshes import RankMeshes, my_group
from tailrace.trainer.ranks.ranks import AnyGradients, Run, Thing, divide, local

TIMEOUT = timedelta(hours=2)
"""A rank that ends is noticed by the controller. This is for ranks that lose each other and all live."""


class Root(nn.Module):
    """The whole model as one module. FSDP2 gathers parameters in the ``forward`` of modules, and the functions that are
    called here use parts of the model in several ways."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Run, *given: object) -> object:
        # FSDP2 hooks onto what is returned, and loses its hook on a view of something else.
        return tree_map(lambda tensor: tensor.clone(), function(*given))


class ProcessRanks:
    """Owns the process groups."""

    def __init__(
        self,
        store: dist.Store,
        *,
        index: int,
        num_shards: int,
        num_replicas: int,
        device: torch.device,
        tensor_parallel_size: int = 1,
    ):
        self._num_shards, self._num_parts = num_shards, tensor_parallel_size
        self._replica_size = num_shards * tensor_parallel_size
        self.index, self.size = index, self._replica_size * num_replicas
        self._replica = index // self._replica_size
        self.num_replicas, self.publishes = num_replicas, self._replica == 0
        self._device, self._store = device, store  # groups that are made later need it
        self._roots: list[FSDPModule] = []
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=index, world_size=self.size, timeout=TIMEOUT)
        ranks_RST = torch.arange(self.size).view(num_replicas, num_shards, tensor_parallel_size)
        self._meshes = RankMeshes.make(ranks_RST, index=index, backend=backend, device_type=device.type)
        self._publishing = RankMeshes.make(ranks_RST, index=index, backend="gloo", device_type="cpu")
        self._replica_control = my_group(ranks_RST.flatten(1).tolist(), "gloo")
        self._control = dist.new_group(backend="gloo")
        self._peers = my_group(ranks_RST.flatten(1).T.tolist(), "gloo")
        """Ranks of all replicas that hold the same part of the model."""

    def shard(self, model: nn.Module, dtype: torch.dtype | None) -> Run:
        # Weights are gathered in this precision; what passes between layers keeps its own.
        reduce_dtype = torch.float32 if dtype else None
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
        if dtype is not None:
            _begin_in_fp32(model)
        for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
            # One after the other, so that no more than one is whole on the device.
            _bring(layer, self._device)
            if self._meshes.tensor is not None:
                tensor_parallel.divide_layer(layer, self._meshes.tensor)
            fully_shard(layer, mesh=self._meshes.shard, reshard_after_forward=True, mp_policy=precision)
        _bring(model, self._device)
        if self._meshes.tensor is not None:
            tensor_parallel.share_ends(model, self._meshes.tensor)
        root = Root(model)
        # Also the root gives its parameters back after a forward pass that no backward pass follows; else the next step
        # would miss the optimizer's changes to them.
        fully_shard(root, mesh=self._meshes.whole, reshard_after_forward=True, mp_policy=precision)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # FSDP2 averages unless told otherwise, and gloo cannot divide: gradients here are sums.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self._roots.append(root)
        return root

    def share(self, costs: Sequence[int], replicas: Sequence[int]) -> tuple[int, int]:
        if self._replica not in replicas:
            return 0, 0
        shard = self.index % self._replica_size // self._num_parts
        place = list(replicas).index(self._replica) * self._num_shards + shard
        return divide(costs, len(replicas) * self._num_shards)[place]

    def by_tokens(self, function: Callable[..., Any], *tensors: Tensor) -> Any:
        mesh = self._meshes.tensor
        return function(*tensors) if mesh is None else tensor_parallel.by_tokens(function, tensors, mesh)

    def most(self, count: int) -> int:
        found = torch.tensor(count)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._replica_control)
        return int(found)

    def gather(self, thing: Thing, *, by_samples: bool = False) -> list[Thing]:
        found: list[Thing] = [json.loads(data) for data in self._gather_bytes(json.dumps(thing).encode())]
        return found[:: self._num_parts] if by_samples else found

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        """Nothing that comes from another rank is unpickled: that would run any code."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(data)]), group=self._control)
        most = max(int(size) for size in sizes)
        mine = torch.frombuffer(bytearray(data.ljust(most, b"\0")), dtype=torch.uint8)
        given = [torch.empty(most, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(given, mine, group=self._control)
        return [part[: int(size)].numpy().tobytes() for part, size in zip(given, sizes, strict=True)]

    def add_up(self, model: nn.Module, gradients: AnyGradients) -> None:
        if self._meshes.tensor is not None:
            tensor_parallel.add_head_norms(model, self._meshes.tensor, gradients)
        if self.num_replicas == 1:
            return
        for parameter in model.parameters():
            if parameter.requires_grad:
                gradient = gradients.of(parameter)
                # None: this replica had nothing to do.
                mine = local(gradients.zeros(parameter) if gradient is None else gradient)
                on_host = mine.cpu()
                dist.all_reduce(on_host, group=self._peers)
                mine.copy_(on_host)

    def whole(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        return self._on_hosts(tensor, tensor.to_local().detach().cpu()).full_tensor()

    def divided_on_host(self, parameter: Tensor, mine: Tensor) -> Tensor:
        return self._on_hosts(parameter, mine) if isinstance(parameter, DTensor) else mine

    def _on_hosts(self, like: DTensor, mine: Tensor) -> DTensor:
        mesh = self._publishing.same_as(like.device_mesh)
        return DTensor.from_local(mine, mesh, like.placements, shape=like.shape, stride=like.stride())

    def put_off(self, is_put_off: bool) -> None:
        for root in self._roots:
            root.set_requires_gradient_sync(not is_put_off)

    def forget_gradients(self) -> None:
        for root in self._roots:
            for module in root.modules():
                group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
                # FSDP2 keeps gradients that are not added up yet outside of ``parameter.grad``, and never drops them.
                for each in group.fsdp_params if group is not None else ():
                    each.unsharded_accumulated_grad = None
                    if hasattr(each, "_unsharded_param"):  # not before the first pass
                        each._unsharded_param.grad = None

    def close(self) -> None:
        dist.destroy_process_group()


def _begin_in_fp32(model: nn.Module) -> None:
    """Let the residual stream begin in fp32, as it does in one process, whose embedding is in fp32. If it began in
    less, the sum would be rounded after every layer."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _, __, found: found.float())


def _bring(module: nn.Module, device: torch.device) -> None:
    """Bring what is not divided yet to a device, parameters in at least fp32. Tied parameters stay tied."""
    for parameter in module.parameters():
        if not isinstance(parameter, DTensor):
            parameter.data = parameter.data.to(device, torch.promote_types(parameter.dtype, torch.float32))
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.to(device)
