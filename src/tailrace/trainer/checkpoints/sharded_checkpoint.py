"""The tensors of a checkpoint that several ranks write together, by torch.distributed.checkpoint.

Each rank writes the parts that it holds into a file of its own (``__RANK_0.distcp``); ``.metadata`` says what is where.
Any number of ranks can read it, also one process alone. Weights are in fp32, under ``LEARNER/weights/NAME``; moments of
the optimizer under ``LEARNER/moments/NAME/KEY``. Weights that do not learn (below an adapter) are not written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from tailrace.store.checkpoint_files import SHARDS_INDEX
from tailrace.trainer.checkpoints.shard_plans import Json, decode_plan, decode_results, encode_plan, encode_results
from tailrace.trainer.optimizer.optimizer import allocate_moments
from tailrace.trainer.ranks.ranks import Ranks

Learners = Mapping[str, tuple[nn.Module, torch.optim.AdamW]]
"""Model and optimizer by name."""


def is_sharded(directory: Path) -> bool:
    return (directory / SHARDS_INDEX).is_file()


def save(directory: Path, learners: Learners, ranks: Ranks) -> None:
    """All ranks call it together. Files are on disk when it returns. If one rank fails, all raise ``OSError``.

    It does what ``dcp.save`` does, and differs in how ranks talk to each other (``shard_plans.py``)."""
    planner, writer = DefaultSavePlanner(), dcp.FileSystemWriter(directory)

    def plan() -> Json:
        planner.set_up_planner(_weights(learners) | _moments(learners), writer.storage_meta(), ranks.index == 0)
        writer.set_up_storage_writer(ranks.index == 0)
        return encode_plan(writer.prepare_local_plan(planner.create_local_plan()))

    plans, metadata = planner.create_global_plan([decode_plan(each) for each in _all_give(ranks, plan)])
    mine = writer.prepare_global_plan(plans)[ranks.index]

    def write() -> Json:
        return encode_results(writer.write_data(planner.finish_plan(mine), planner).wait())

    results = [decode_results(each) for each in _all_give(ranks, write)]
    _all_give(ranks, lambda: writer.finish(metadata, results) if ranks.index == 0 else None)


def _all_give(ranks: Ranks, work: Callable[[], Json]) -> list[Json]:
    """What the work of each rank returns. If it fails on some, all ranks raise ``OSError`` with what each says, in one
    line. What a disk says comes first: it is the cause of other errors."""
    failure: Exception | None = None
    try:
        given = {"value": work()}
    except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait to hear it
        failure = error
        given = {"error": str(error) or type(error).__name__, "is_of_disk": isinstance(error, OSError)}
    gathered = ranks.gather(given)
    said = [(not each["is_of_disk"], rank, each["error"]) for rank, each in enumerate(gathered) if "error" in each]
    if said:
        raise OSError("; ".join(f"rank {rank}: {text}" for _, rank, text in sorted(said))) from failure
    return [each["value"] for each in gathered]


def load(directory: Path, learners: Learners, ranks: Ranks) -> None:
    """Overwrite weights and moments in place. All ranks call it together. If one rank fails, all raise ``OSError``."""
    _all_give(ranks, lambda: _load(directory, learners))


def _load(directory: Path, learners: Learners) -> None:
    reader = dcp.FileSystemReader(directory)
    stored = reader.read_metadata().state_dict_metadata.keys()
    for _, optimizer in learners.values():
        allocate_moments(optimizer)
    moments = {name: tensor for name, tensor in _moments(learners).items() if name in stored}
    _read(reader, _weights(learners) | moments)
    for name, (_, optimizer) in learners.items():
        if not any(key.startswith(f"{name}/moments/") for key in moments):  # saved before the first step
            optimizer.state.clear()


def load_weights(directory: Path, name: str, model: nn.Module) -> None:
    """Overwrite the weights of one learner that were trained, in place. Others are not in the checkpoint."""
    _read(dcp.FileSystemReader(directory), _trained(name, model))


def _read(reader: dcp.FileSystemReader, state: dict[str, Tensor]) -> None:
    """Each rank finds out for itself what it has to read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")  # that is what is meant
        try:
            dcp.load(dict(state), storage_reader=reader, no_dist=True)
        except CheckpointException as error:  # it is no Exception
            raise OSError("; ".join(str(wrapped[0]) for wrapped in error.failures.values())) from error


def _weights(learners: Learners) -> dict[str, Tensor]:
    return {key: tensor for name, (model, _) in learners.items() for key, tensor in _trained(name, model).items()}


def _trained(learner: str, model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{learner}/weights/{name}": parameter.detach()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _moments(learners: Learners) -> dict[str, Tensor]:
    return {
        f"{learner}/moments/{name}/{key}": value
        for learner, (model, optimizer) in learners.items()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
