"""The tensors of a checkpoint that several ranks write together, by torch.distributed.checkpoint.

Each rank writes the parts that it holds into a file of its own (``__RANK_0.distcp``); ``.metadata`` says what is where.
Any number of ranks can read it, also one process alone. Weights are in fp32, under ``LEARNER/weights/NAME``; moments of
the optimizer under ``LEARNER/moments/NAME/KEY``. Weights that do not learn (below an adapter) are not written.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException

from tailrace.store.checkpoint_files import SHARDS_INDEX
from tailrace.trainer.optimizer import allocate_moments

Learners = Mapping[str, tuple[nn.Module, torch.optim.AdamW]]
"""Model and optimizer by name."""


def is_sharded(directory: Path) -> bool:
    return (directory / SHARDS_INDEX).is_file()


def save(directory: Path, learners: Learners) -> None:
    """All ranks call it together. Files are on disk when it returns."""
    state = _weights(learners) | _moments(learners)
    try:
        dcp.save(dict(state), storage_writer=dcp.FileSystemWriter(directory))
    except CheckpointException as error:  # every rank gets it, whichever failed; it is no Exception
        raise OSError(_reason(error)) from error


def _reason(error: CheckpointException) -> str:
    """What each rank says, in one line. What a disk says comes first: it is the cause of other errors."""
    said = [(rank, wrapped[0]) for rank, wrapped in error.failures.items()]
    said.sort(key=lambda each: (not isinstance(each[1], OSError), each[0]))
    return "; ".join(f"rank {rank}: {str(each) or type(each).__name__}" for rank, each in said)


def load(directory: Path, learners: Learners) -> None:
    """Overwrite weights and moments in place. All ranks call it together."""
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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process.*")  # one process alone: that is what is meant
        try:
            dcp.load(dict(state), storage_reader=reader, no_dist=not dist.is_initialized())
        except CheckpointException as error:  # it is no Exception
            raise OSError(_reason(error)) from error


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
