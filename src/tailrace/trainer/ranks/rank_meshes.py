"""Who talks to whom: the process groups of this rank's replica, as meshes that PyTorch's sharding understands.

A replica is a table of ranks, shards x tensor parts:

              part 0    part 1
    shard 0   rank 0    rank 1
    shard 1   rank 2    rank 3

    tensor    the ranks of a row: they compute the same samples, each with its part of every layer
    shard     the ranks of a column: they divide their part of a layer among themselves (FSDP2)
    both      the table
    whole     all ranks of the table, in one dimension

Without tensor parallelism a row has one rank, and ``shard`` is ``whole``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeshes:
    whole: DeviceMesh
    shard: DeviceMesh
    tensor: DeviceMesh | None = None
    """None: every rank has whole layers."""
    both: DeviceMesh | None = None

    @classmethod
    def make(cls, ranks_RST: torch.Tensor, *, index: int, backend: str, device_type: str) -> Self:
        """Meshes of new process groups. Every rank takes part in making the groups of all replicas.

        ``ranks_RST``: all ranks, replicas x shards x tensor parts.
        """
        whole = DeviceMesh.from_group(my_group(ranks_RST.flatten(1).tolist(), backend), device_type)
        if ranks_RST.shape[2] == 1:
            return cls(whole=whole, shard=whole)
        shard = my_group(ranks_RST.transpose(1, 2).flatten(0, 1).tolist(), backend)
        tensor = my_group(ranks_RST.flatten(0, 1).tolist(), backend)
        replica = ranks_RST[index // ranks_RST[0].numel()]
        both = DeviceMesh.from_group([shard, tensor], device_type, replica, mesh_dim_names=("shard", "tensor"))
        return cls(whole=whole, shard=both["shard"], tensor=both["tensor"], both=both)

    def same_as(self, other: DeviceMesh) -> DeviceMesh:
        """The one of these meshes that has the ranks of another mesh."""
        for mesh in (self.whole, self.shard, self.both):
            if mesh is not None and mesh.mesh.tolist() == other.mesh.tolist():
                return mesh
        raise AssertionError(f"no mesh has the ranks {other.mesh.tolist()}")


def my_group(groups: Sequence[list[int]], backend: str) -> dist.ProcessGroup:
    """The one of these groups that this rank is in. Every rank takes part in making all of them."""
    group, _ = dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups], backend=backend)
    return group
