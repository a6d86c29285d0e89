"""Ranks that divide a model between them never have all of it on a device."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from engines.rollouts import save_random_model, small_llama
from tailrace.trainer.model.model_files import open_model
from tailrace.trainer.ranks.process_ranks import ProcessRanks
from tailrace.trainer.ranks.rank_meshes import RankMeshes

NUM_RANKS = 8


def test_a_rank_brings_one_layer_at_a_time_to_its_device(tmp_path: Path) -> None:
    """One rank of eight that are not there: dividing a model needs no message."""
    save_random_model(tmp_path, small_llama(hidden_size=1024, intermediate_size=4096, num_hidden_layers=16))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    try:
        mesh = init_device_mesh("cuda", (NUM_RANKS,))
        ranks = object.__new__(ProcessRanks)  # without groups of its own, which need the others
        ranks._device, ranks._roots, ranks._meshes = torch.device("cuda"), [], RankMeshes(whole=mesh, shard=mesh)
        model = open_model(tmp_path)
        num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ranks.shard(model, torch.bfloat16)
        kept, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    finally:
        dist.destroy_process_group()
    print(f"model {num_bytes / 2**20:.0f} MiB, kept {kept / 2**20:.0f}, peak {peak / 2**20:.0f}")
    assert kept < 1.1 * num_bytes / NUM_RANKS
    assert peak < num_bytes / NUM_RANKS + 3 * num_bytes / 16
