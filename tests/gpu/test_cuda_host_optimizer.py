"""On a GPU, an optimizer on the host takes the same steps and leaves its memory to others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engines.rollouts import save_random_model, small_llama
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.checkpoints import sharded_checkpoint
from tailrace.trainer.optimizer.host_optimizer import HostAdamW
from tailrace.trainer.ranks.process_ranks import ProcessRanks
from tailrace.trainer.ranks.ranks import ALONE, Ranks, local
from tailrace.trainer.trainer import Trainer
from trainer.conftest import make_groups  # noqa: F401

MakeGroups = Callable[..., list[list[Sample]]]
STEPS = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    save_random_model(found, small_llama())
    return found


@pytest.fixture(params=["alone", "sharded"])
def ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    """One process by itself, or as the only rank of a group: its parameters are then divided among one."""
    if request.param == "alone":
        yield ALONE
        return
    store = dist.FileStore(str(tmp_path / "store"), 1)
    group = ProcessRanks(store, index=0, num_shards=1, num_replicas=1, device=torch.device("cuda", 0))
    yield group
    group.close()


def make_trainer(path: Path, ranks: Ranks, optimizer_device: Any) -> Trainer:
    return Trainer(
        path,
        model=ModelSettings(path=str(path), device="cuda", dtype="float32"),
        settings=TrainerSettings(learning_rate=1e-3, optimizer_device=optimizer_device),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_steps=10,
        seed=0,
        ranks=ranks,
    )


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    for (name, mine), (_, theirs) in zip(one.named_weights(), other.named_weights(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}")


def save(trainer: Trainer, directory: Path) -> None:
    if trainer._ranks is ALONE:
        trainer.save(directory)
    else:  # one rank writes a file for one process, unless it is asked for what several ranks write
        sharded_checkpoint.save(directory, {"policy": (trainer.model, trainer._optimizer)}, trainer._ranks)


def load(trainer: Trainer, directory: Path) -> None:
    if trainer._ranks is ALONE:
        trainer.load(directory)
    else:
        sharded_checkpoint.load(directory, {"policy": (trainer.model, trainer._optimizer)}, trainer._ranks)


def test_steps_on_the_host_are_those_on_the_gpu(
    path: Path,
    ranks: Ranks,
    make_groups: MakeGroups,  # noqa: F811
    tmp_path: Path,
) -> None:
    on_gpu, on_host = (make_trainer(path, ranks, where) for where in (None, "cpu"))
    before = [tensor.clone() for _, tensor in on_host.named_weights()]
    for step in range(STEPS):
        groups = make_groups(step, version=step)
        expected, found = on_gpu.train(groups).metrics, on_host.train(groups).metrics
        assert found["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-3)
    assert any(not torch.equal(old, new) for old, (_, new) in zip(before, on_host.named_weights(), strict=True))
    assert_same_weights(on_host, on_gpu)
    assert all(parameter.is_cuda for parameter in on_host.model.parameters())
    assert isinstance(on_host._optimizer, HostAdamW)
    for state in on_host._optimizer.state.values():
        assert {local(value).device.type for value in state.values()} == {"cpu"}
    # Each continues from the other's checkpoint.
    save(on_gpu, tmp_path / "gpu")
    save(on_host, tmp_path / "host")
    load(on_gpu, tmp_path / "host")
    load(on_host, tmp_path / "gpu")
    groups = make_groups(STEPS, version=STEPS)
    on_gpu.train(groups)
    on_host.train(groups)
    assert_same_weights(on_host, on_gpu)
    for state in on_host._optimizer.state.values():
        assert {local(value).device.type for value in state.values()} == {"cpu"}


def test_the_moments_take_no_memory_of_the_gpu(path: Path, make_groups: MakeGroups) -> None:  # noqa: F811
    make_trainer(path, ALONE, None).train(make_groups(0))  # libraries take their memory when they are first used
    used = {}
    for where in (None, "cpu"):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        trainer = make_trainer(path, ALONE, where)
        trainer.train(make_groups(0))
        used[where] = torch.cuda.memory_allocated() - before
        num_bytes = sum(4 * parameter.numel() for parameter in trainer.model.parameters())
        del trainer
    assert used[None] - used["cpu"] >= 2 * num_bytes
