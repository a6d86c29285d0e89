"""One rank of a trainer, in a process of its own: ``rank_process.py PLANS INDEX SHARDS REPLICAS PARTS``.

Does what the plans say, one after the other, and writes what it found to ``PLANS.INDEX``.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from tailrace.trainer.ranks.process_ranks import ProcessRanks
from tailrace.trainer.trainer import Trainer
from tailrace.workers.weight_outlet import _local_weights
from trainer.publish_beside import publish_beside


@dataclass(kw_only=True)
class Plan:
    model_path: Path
    given: dict[str, Any]
    """Settings of the trainer."""
    actions: list[tuple[Any, ...]]
    """Names of the trainer's methods with their arguments. ``gradient`` and ``weights`` note these, ``masters`` the
    weights as the optimizer has them. ``publish`` accumulates while weights are published; it notes them as they were
    before, and as they were published. ``fail to save`` may have ``{index}`` in its folder, the number of the rank."""
    is_in_fp64: bool = False


@dataclass(kw_only=True)
class Found:
    metrics: list[dict[str, float]] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)
    weights: list[dict[str, torch.Tensor]] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    num_rows: int = 0
    """Rows of the embedding that this rank holds."""
    error: str | None = None


class ExactRanks(ProcessRanks):
    """Ranks that may compute in fp64."""

    is_in_fp64 = False

    def shard(self, model: torch.nn.Module, dtype: torch.dtype | None) -> Any:
        return super().shard(model.double() if self.is_in_fp64 else model, dtype)


def run(
    plans: dict[str, Plan], folder: Path, *, num_shards: int, num_replicas: int, tensor_parallel_size: int
) -> dict[str, list[Found]]:
    """Carry the plans out on as many processes as there are ranks; what each rank found."""
    path = folder / "plans"
    path.write_bytes(pickle.dumps(plans))
    size = num_shards * num_replicas * tensor_parallel_size
    command = [sys.executable, str(Path(__file__).resolve()), str(path)]
    # Where Python finds the modules that this process finds, those of the tests among them.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes = [
        subprocess.Popen(
            [*command, *map(str, (index, num_shards, num_replicas, tensor_parallel_size))],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for index in range(size)
    ]
    said = [process.communicate(timeout=280)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * size, "\n".join(said)
    found = [pickle.loads(Path(f"{path}.{index}").read_bytes()) for index in range(size)]
    return {name: [each[name] for each in found] for name in plans}


def carry_out(plan: Plan, trainer: Trainer, index: int = 0) -> Found:
    found = Found()
    for name, *given in plan.actions:
        match name:
            case "accumulate":
                groups, replicas = given
                trainer.accumulate(groups, replicas=replicas)
            case "finish_step":
                try:
                    found.metrics.append(trainer.finish_step().metrics)
                except FloatingPointError as error:
                    found.error = str(error)
            case "forward":
                found.scores.append(trainer.forward(*given))
            case "gradient":
                gradients = [_whole(parameter.grad).flatten() for parameter in trainer.model.parameters()]
                found.gradients.append(torch.cat(gradients))
            case "weights":
                found.weights.append({name: tensor.clone() for name, tensor in trainer.named_weights()})
            case "masters":
                found.weights.append({name: _whole(p.detach()) for name, p in trainer.model.named_parameters()})
            case "publish":
                groups, is_whole = given
                weights = trainer.named_weights if is_whole else lambda: _local_weights(trainer)
                found.weights.append({name: tensor.clone() for name, tensor in weights()})
                published = publish_beside(trainer, index, weights, lambda: trainer.accumulate(groups))  # noqa: B023
                found.weights.append(published)
            case "fail to save":
                try:
                    trainer.save(Path(str(given[0]).format(index=index)))
                except OSError as error:
                    found.error = str(error)
            case "save" | "load" | "drop_step":
                getattr(trainer, name)(*given)
    embedding = next(trainer.model.parameters())
    found.num_rows = len(embedding.to_local() if isinstance(embedding, DTensor) else embedding)
    return found


def forbid_objects_of_other_ranks(event: str, given: tuple[object, ...]) -> None:
    """An error if torch.distributed unpickles an object of any class: it would run any code of another rank."""
    if event != "pickle.find_class":
        return
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.endswith("distributed_c10d.py"):
            raise AssertionError(f"{given} came from another rank")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def main(path: Path, index: int, num_shards: int, num_replicas: int, tensor_parallel_size: int) -> None:
    torch.set_num_threads(1)
    plans: dict[str, Plan] = pickle.loads(path.read_bytes())
    sys.addaudithook(forbid_objects_of_other_ranks)
    found = {}
    ranks = ExactRanks(
        dist.FileStore(str(path.parent / "store"), num_shards * num_replicas * tensor_parallel_size),
        index=index,
        num_shards=num_shards,
        num_replicas=num_replicas,
        tensor_parallel_size=tensor_parallel_size,
        device=torch.device("cpu"),
    )
    for name, plan in plans.items():
        ranks.is_in_fp64 = plan.is_in_fp64
        found[name] = carry_out(plan, Trainer(plan.model_path, ranks=ranks, **plan.given), index)
    Path(f"{path}.{index}").write_bytes(pickle.dumps(found))
    ranks.close()


if __name__ == "__main__":
    # As a module with a name, so that what it pickles can be read by the tests.
    from trainer import rank_process

    rank_process.main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
