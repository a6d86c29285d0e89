"""On a GPU, what a trainer keeps between the pieces of a step if gradients, AdamW's state or the reference are away."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engines.rollouts import save_random_model, small_llama
from gpu.test_cuda_host_optimizer import assert_same_weights, ranks  # noqa: F401
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.offload.layer_offload import decoder_layers
from tailrace.trainer.batch import Sample
from tailrace.trainer.optimizer.gradients import HostGradients
from tailrace.trainer.ranks.ranks import ALONE, Ranks, local
from tailrace.trainer.trainer import Trainer
from tailrace.weights.slots.channel_files import remove_channel
from tailrace.workers.messages import TrainingInit
from tailrace.workers.training_worker import TrainingWorker
from trainer.conftest import make_groups  # noqa: F401
from workers.test_training_worker import Heard, accumulate, model_init

MakeGroups = Callable[..., list[list[Sample]]]
MIB = 2**20
NUM_LAYERS = 8
SIZES: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": NUM_LAYERS, "num_attention_heads": 16,
    "num_key_value_heads": 4, "initializer_range": 0.02,
}  # fmt: skip
WITH_KL = AlgorithmSettings(kl_loss_coef=0.1)
PLACES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradients": {"gradients_device": "cpu"},
    "optimizer": {"optimizer_device": "cpu"},
    "both": {"gradients_device": "cpu", "optimizer_device": "cpu"},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model")
    save_random_model(found, small_llama(**SIZES))
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("small")
    save_random_model(found, small_llama())
    return found


@pytest.fixture(autouse=True)
def free_of_earlier_tests() -> Iterator[None]:
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def make_trainer(
    path: Path,
    changes: dict[str, Any],
    *,
    algorithm: AlgorithmSettings | None = None,
    dtype: Any = "bfloat16",
    ranks: Ranks = ALONE,  # noqa: F811
) -> Trainer:
    return Trainer(
        path,
        model=ModelSettings(path=str(path), device="cuda", dtype=dtype),
        settings=TrainerSettings.model_validate({"learning_rate": 1e-3, "max_tokens_per_gpu": 64, **changes}),
        algorithm=algorithm or AlgorithmSettings(),
        temperature=1.0,
        max_steps=10,
        seed=0,
        ranks=ranks,
    )


def allocated() -> int:
    """Bytes in use. Buffers that a copy stream used count until torch has looked whether it is done with them."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


def num_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def rounded(model: torch.nn.Module) -> int:
    """What torch may take more than it is asked for, for one tensor of each parameter."""
    return 2 * MIB * len(list(model.parameters()))


def test_what_waits_on_the_host_takes_no_memory_of_the_gpu_between_two_pieces(
    path: Path,
    make_groups: MakeGroups,  # noqa: F811
) -> None:
    make_trainer(path, {}).train(make_groups(0))  # libraries take their memory when they are first used
    used: dict[str, int] = {}
    for name, changes in PLACES.items():
        before = allocated()
        trainer = make_trainer(path, changes)
        weights, spare = 4 * num_parameters(trainer.model), rounded(trainer.model)
        trainer.train(make_groups(0))
        after_step = allocated() - before
        groups = make_groups(1, version=1)
        for piece in (groups[:2], groups[2:]):
            trainer.accumulate(piece)
            used[name] = allocated() - before
            gradients = used[name] - after_step
            assert gradients == pytest.approx(0 if "gradients_device" in changes else weights, abs=spare), name
        trainer.finish_step()
        assert allocated() - before == pytest.approx(after_step, abs=spare)
        del trainer
    assert used["plain"] == pytest.approx(4 * weights, abs=4 * spare)
    assert used["plain"] - used["gradients"] == pytest.approx(weights, abs=spare)
    assert used["plain"] - used["optimizer"] == pytest.approx(2 * weights, abs=2 * spare)
    assert used["both"] == pytest.approx(weights, abs=spare), "only the weights are there"


@pytest.mark.parametrize("name", ["gradients", "both"])
def test_steps_whose_gradients_wait_on_the_host_are_those_without(
    small: Path,
    ranks: Ranks,  # noqa: F811
    make_groups: MakeGroups,  # noqa: F811
    name: str,
) -> None:
    plain, waiting = (make_trainer(small, PLACES[each], dtype="float32", ranks=ranks) for each in ("plain", name))
    for step in range(3):
        groups = make_groups(step, version=step)
        found = []
        for trainer in (plain, waiting):
            for piece in (groups[:2], groups[2:4], groups[4:]):
                trainer.accumulate(piece)
            found.append(trainer.finish_step().metrics["actor/grad_norm"])
        assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert_same_weights(waiting, plain)
    gradients = waiting._gradients
    assert isinstance(gradients, HostGradients)
    assert {local(place).device.type for place in gradients._places.values()} == {"cpu"}
    assert all(place.is_pinned() for place in gradients._places.values())


def test_a_reference_on_the_host_says_the_same_bits_and_leaves_its_layers_there(
    path: Path,
    make_groups: MakeGroups,  # noqa: F811
) -> None:
    make_trainer(path, {}, algorithm=WITH_KL).train(make_groups(0))
    used, said = {}, {}
    samples = [sample for group in make_groups(1) for sample in group]
    for where in (None, "cpu"):
        before = allocated()
        trainer = make_trainer(path, {"reference_device": where}, algorithm=WITH_KL)
        trainer.train(make_groups(0))
        used[where] = allocated() - before
        micros = trainer._micro_batches.of(samples, [0.0] * len(samples), range(len(samples)), trainer.version)
        said[where] = [trainer._score_reference(micro).cpu() for micro, _ in micros]
        layer = 4 * num_parameters(decoder_layers(trainer.model)[0])
        spare = rounded(trainer.model)
        del trainer, micros
    assert used[None] - used["cpu"] == pytest.approx((NUM_LAYERS - 2) * layer, abs=spare)
    assert len(said[None]) > 3
    for one, other in zip(said[None], said["cpu"], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_worker_gives_its_cache_back_after_a_piece_if_it_is_to(tmp_path: Path, leaves: bool) -> None:
    init = model_init("policy", f"test-{tmp_path.name}", leaves_between_pieces=leaves)
    on_cuda = replace(init, model=ModelSettings(path=init.model.path, device="cuda", dtype="bfloat16"))
    worker = TrainingWorker(Heard(), TrainingInit(models=(on_cuda,)))
    try:
        for _ in range(2):  # the first time makes what cuBLAS keeps for good
            large = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
            del large
            worker.handle(accumulate(0))
            assert (torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 64 * MIB) == leaves
            worker.models["policy"].drop_step(worker.models["policy"]._trainer.version)
    finally:
        remove_channel(worker.models["policy"].channel)
