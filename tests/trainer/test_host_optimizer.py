"""An optimizer on the host takes the step of one on the device, and their checkpoints are interchangeable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.optimizer import optimizer
from tailrace.trainer.optimizer.host_optimizer import HostAdamW
from tailrace.trainer.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
MakeGroups = Callable[..., list[list[Sample]]]
ON_DEVICE = TrainerSettings(learning_rate=1e-2, weight_decay=0.1, warmup_steps=2)
ON_HOST = ON_DEVICE.model_copy(update={"optimizer_device": "cpu"})


def train(trainer: Trainer, make_groups: MakeGroups, steps: range) -> list[dict[str, float]]:
    return [trainer.train(make_groups(step, version=step)).metrics for step in steps]


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    for (name, mine), (_, theirs) in zip(one.named_weights(), other.named_weights(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize(("estimator", "lora_rank"), [("grpo", 0), ("gae", 0), ("grpo", 4)])
def test_steps_on_the_host_are_those_on_the_device(
    make_trainer: MakeTrainer, make_groups: MakeGroups, estimator: str, lora_rank: int
) -> None:
    algorithm = AlgorithmSettings.model_validate({"advantage_estimator": estimator})
    on_device, on_host = (
        make_trainer(settings=settings, algorithm=algorithm, lora_rank=lora_rank) for settings in (ON_DEVICE, ON_HOST)
    )
    assert train(on_host, make_groups, range(4)) == train(on_device, make_groups, range(4))
    assert_same_weights(on_host, on_device)


@pytest.mark.parametrize(("first", "second"), [(ON_DEVICE, ON_HOST), (ON_HOST, ON_DEVICE)])
@pytest.mark.parametrize("saved_after", [0, 2])
def test_either_continues_from_a_checkpoint_of_the_other(
    make_trainer: MakeTrainer,
    make_groups: MakeGroups,
    tmp_path: Path,
    first: TrainerSettings,
    second: TrainerSettings,
    saved_after: int,
) -> None:
    whole, saved, continued = (make_trainer(settings=settings) for settings in (ON_DEVICE, first, second))
    expected = train(whole, make_groups, range(4))
    train(saved, make_groups, range(saved_after))
    saved.save(tmp_path / "step")
    continued.load(tmp_path / "step")
    assert train(continued, make_groups, range(saved_after, 4)) == expected[saved_after:]
    assert_same_weights(continued, whole)


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    model = torch.nn.Linear(3, 2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    adamw = optimizer.adamw(model, ON_HOST, learning_rate=0.1)
    assert isinstance(adamw, HostAdamW)
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step(adamw, ON_HOST, learning_rate=0.1)
    assert not torch.equal(model.weight, before["weight"])
    assert torch.equal(model.bias, before["bias"])
    assert model.bias not in adamw.state
