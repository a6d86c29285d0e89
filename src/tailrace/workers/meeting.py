"""How the workers of a training group find each other.

The first worker opens a store on a free port of its machine and tells the controller, which tells the others.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from tailrace.trainer.model_files import resolve_device
from tailrace.trainer.ranks import ALONE, Ranks
from tailrace.weights.own_address import own_address
from tailrace.workers.link import Link
from tailrace.workers.messages import Meeting, TrainingInit

_LIMIT = timedelta(minutes=10)


def meet(link: Link, init: TrainingInit) -> Ranks:
    """Wait until all workers of the group are there."""
    size = init.num_ranks
    if size == 1:
        return ALONE
    if len(init.models) > 1:
        raise ValueError(f"a group of {size} ranks trains one model, not {len(init.models)}")
    from tailrace.trainer.process_ranks import ProcessRanks  # one rank alone needs none of it

    return ProcessRanks(
        _open_store(link, init.rank, size),
        index=init.rank,
        num_shards=init.num_shards,
        num_replicas=init.num_replicas,
        tensor_parallel_size=init.tensor_parallel_size,
        device=_device(init),
    )


def _open_store(link: Link, rank: int, size: int) -> dist.TCPStore:
    if rank == 0:
        host = own_address()
        store = dist.TCPStore(host, 0, size, is_master=True, wait_for_workers=False, timeout=_LIMIT)
        link.send(Meeting(host=host, port=store.port))
        return store
    meeting = link.receive(None)
    assert isinstance(meeting, Meeting), meeting
    return dist.TCPStore(meeting.host, meeting.port, size, is_master=False, timeout=_LIMIT)


def _device(init: TrainingInit) -> torch.device:
    """The device of this rank: GPU number ``rank`` of its machine, or the CPU."""
    device = resolve_device(init.models[0].model.device)
    if device.type != "cuda":
        return device
    device = torch.device("cuda", init.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
