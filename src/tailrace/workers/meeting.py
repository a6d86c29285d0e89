"""How the workers of a training group find each other.

The first worker opens a store on a free port of its machine and tells the controller, which tells the others. They are
told the store's key too: who does not know it is turned away.
"""

from __future__ import annotations

import torch

from tailrace.trainer.model.model_files import resolve_device
from tailrace.trainer.ranks.ranks import ALONE, Ranks
from tailrace.weights.collective.run_store import RunStore, StorePlace, join_store, open_store
from tailrace.workers.link import Link
from tailrace.workers.messages import Meeting, TrainingInit

_LIMIT_S = 600.0


def meet(link: Link, init: TrainingInit) -> Ranks:
    """Wait until all workers of the group are there."""
    size = init.num_ranks
    if size == 1:
        return ALONE
    if len(init.models) > 1:
        raise ValueError(f"a group of {size} ranks trains one model, not {len(init.models)}")
    from tailrace.trainer.ranks.process_ranks import ProcessRanks  # one rank alone needs none of it

    return ProcessRanks(
        _open_store(link, init.rank),
        index=init.rank,
        num_shards=init.num_shards,
        num_replicas=init.num_replicas,
        tensor_parallel_size=init.tensor_parallel_size,
        device=_device(init),
    )


def _open_store(link: Link, rank: int) -> RunStore:
    if rank == 0:
        store = open_store(limit_s=_LIMIT_S)
        link.send(Meeting(host=store.place.host, port=store.place.port, key=store.place.key))
        return store
    meeting = link.receive(None)
    assert isinstance(meeting, Meeting), meeting
    return join_store(StorePlace(host=meeting.host, port=meeting.port, key=meeting.key), limit_s=_LIMIT_S)


def _device(init: TrainingInit) -> torch.device:
    """The device of this rank: GPU number ``rank`` of its machine, or the CPU."""
    device = resolve_device(init.models[0].model.device)
    if device.type != "cuda":
        return device
    device = torch.device("cuda", init.rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
