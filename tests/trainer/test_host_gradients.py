"""Gradients that wait on the host between pieces: the same step bit for bit, and none on the device meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.optimizer import optimizer
from tailrace.trainer.optimizer.gradients import Gradients, HostGradients
from tailrace.trainer.optimizer.host_optimizer import HostAdamW
from tailrace.trainer.ranks.ranks import ALONE
from tailrace.trainer.trainer import StepResult, Trainer
from trainer.test_pieces import VARIANTS, in_fp64, random_pieces

MakeTrainer = Callable[..., Trainer]
Groups = list[list[Sample]]
MakeGroups = Callable[..., Groups]
PLAIN = TrainerSettings(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5, max_tokens_per_gpu=64)
WAITING = PLAIN.model_copy(update={"gradients_device": "cpu"})
BOTH = WAITING.model_copy(update={"optimizer_device": "cpu"})
LEARNERS = [("grpo", 0), ("gae", 0), ("grpo", 4), ("gae", 4)]


def gradients(trainer: Trainer) -> list[Gradients]:
    return trainer._all_gradients()


def summed(trainer: Trainer) -> list[torch.Tensor | None]:
    """Copies of all gradients, wherever they are."""
    found = [each.of(parameter) for each in gradients(trainer) for parameter in each.learning]
    return [None if each is None else each.clone() for each in found]


def on_device(trainer: Trainer) -> list[torch.Tensor]:
    learning = (parameter for each in gradients(trainer) for parameter in each.learning)
    return [parameter.grad for parameter in learning if parameter.grad is not None]


def state(trainer: Trainer) -> list[torch.Tensor]:
    """Everything that an optimizer step changes."""
    models = [(trainer.model, trainer._optimizer)]
    if trainer.critic is not None:
        models.append((trainer.critic.model, trainer.critic.optimizer))
    found = []
    for model, its_optimizer in models:
        found += [parameter.detach().clone() for parameter in model.parameters()]
        moments = [its_optimizer.state.get(parameter, {}) for parameter in model.parameters()]
        found += [each[name].clone() for each in moments for name in sorted(each)]
    return found


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


def take_steps(trainer: Trainer, make_groups: MakeGroups, *, in_pieces: bool) -> list[StepResult]:
    results = []
    for step in range(3):
        groups = make_groups(step, version=step, num_groups=6)
        for piece in random_pieces(groups, step) if in_pieces else [groups]:
            trainer.accumulate(piece)
            if trainer._settings.gradients_device is not None:
                assert on_device(trainer) == []
        results.append(trainer.finish_step())
        assert all(each is None for each in summed(trainer))
    return results


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("settings", [WAITING, BOTH], ids=["gradients", "gradients and optimizer"])
@pytest.mark.parametrize(("estimator", "lora_rank"), LEARNERS)
def test_steps_whose_gradients_wait_on_the_host_are_the_same_bit_for_bit(
    make_trainer: MakeTrainer,
    make_groups: MakeGroups,
    estimator: str,
    lora_rank: int,
    settings: TrainerSettings,
    in_pieces: bool,
) -> None:
    algorithm = AlgorithmSettings.model_validate({"advantage_estimator": estimator})
    plain, waiting = (
        make_trainer(settings=each, algorithm=algorithm, lora_rank=lora_rank) for each in (PLAIN, settings)
    )
    assert isinstance(waiting._optimizer, HostAdamW) == (settings is BOTH)
    expected = take_steps(plain, make_groups, in_pieces=in_pieces)
    assert take_steps(waiting, make_groups, in_pieces=in_pieces) == expected
    assert any(each.metrics["actor/grad_norm"] > PLAIN.max_grad_norm for each in expected), "nothing was clipped"
    assert_same(state(waiting), state(plain))


@pytest.mark.parametrize("name", VARIANTS)
def test_any_split_has_the_gradient_of_the_whole_also_on_the_host(
    make_trainer: MakeTrainer, make_groups: MakeGroups, exact_model_path: Path, name: str
) -> None:
    groups, updated = make_groups(3, num_groups=6), []
    for settings, pieces in ((PLAIN, [groups]), *((BOTH, random_pieces(groups, seed)) for seed in range(3))):
        trainer = in_fp64(
            make_trainer(algorithm=VARIANTS[name], settings=settings, path=exact_model_path, max_response_length=20)
        )
        before = state(trainer)
        for piece in pieces:
            trainer.accumulate(piece)
        assert_same(state(trainer), before)
        found = summed(trainer)
        assert {each.dtype for each in found if each is not None} == {torch.float64}
        trainer.finish_step()
        updated.append((found, [parameter.detach().clone() for parameter in trainer.model.parameters()]))
    (gradient, weights), *others = updated
    assert max(float(each.abs().max()) for each in gradient if each is not None) > 1e-3
    for other_gradient, other_weights in others:
        for one, other in zip([*gradient, *weights], [*other_gradient, *other_weights], strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or (one - other).abs().max() < 1e-10


@pytest.mark.parametrize("settings", [WAITING, BOTH])
def test_memory_of_the_host_is_taken_once(
    make_trainer: MakeTrainer, make_groups: MakeGroups, settings: TrainerSettings
) -> None:
    trainer, addresses = make_trainer(settings=settings), []
    for step in range(3):
        trainer.accumulate(make_groups(step, version=step))
        [waiting] = gradients(trainer)
        assert isinstance(waiting, HostGradients)
        addresses.append([place.data_ptr() for place in waiting._places.values()])
        trainer.finish_step()
    assert addresses[0] == addresses[1] == addresses[2]


@pytest.mark.parametrize("settings", [WAITING, BOTH])
def test_a_dropped_step_leaves_nothing_on_the_host(
    make_trainer: MakeTrainer, make_groups: MakeGroups, settings: TrainerSettings
) -> None:
    trainer, fresh = make_trainer(settings=settings), make_trainer(settings=PLAIN)
    trainer.accumulate(make_groups(1))
    trainer.accumulate(make_groups(9)[:0])  # nothing to add
    trainer.drop_step()
    assert all(each is None for each in summed(trainer))
    assert trainer.train(make_groups(2)).metrics == fresh.train(make_groups(2)).metrics
    assert_same(state(trainer), state(fresh))


@pytest.mark.parametrize("settings", [WAITING, BOTH])
def test_a_step_that_fails_leaves_nothing_on_the_host(
    make_trainer: MakeTrainer, make_groups: MakeGroups, settings: TrainerSettings
) -> None:
    trainer = make_trainer(settings=settings)
    before, groups = state(trainer), make_groups(1)
    trainer.accumulate(groups)
    [waiting] = gradients(trainer)
    broken = waiting.of(waiting.learning[0])
    assert broken is not None
    broken[0] = math.nan
    with pytest.raises(FloatingPointError, match="the norm of the actor's gradient is nan"):
        trainer.finish_step()
    assert all(each is None for each in summed(trainer))
    assert_same(state(trainer), before)
    assert trainer.train(groups).metrics == make_trainer(settings=PLAIN).train(groups).metrics


def test_a_checkpoint_is_written_only_when_no_gradient_waits(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path
) -> None:
    trainer, plain, continued = make_trainer(settings=BOTH), make_trainer(settings=PLAIN), make_trainer(settings=PLAIN)
    trainer.accumulate(make_groups(0))
    with pytest.raises(ValueError, match="step 0 has begun"):
        trainer.save(tmp_path / "begun")
    trainer.finish_step()
    trainer.save(tmp_path / "step")
    trainer.accumulate(make_groups(5, version=1))
    trainer.load(tmp_path / "step")  # what was added since is forgotten
    plain.train(make_groups(0))
    continued.load(tmp_path / "step")
    for each in (trainer, plain, continued):
        each.train(make_groups(1, version=1))
    assert_same(state(trainer), state(plain))
    assert_same(state(continued), state(plain))


def test_a_parameter_without_a_gradient_has_none_on_the_host() -> None:
    """Else it would decay, and its moments would move."""
    model = torch.nn.Linear(3, 2)
    waiting = HostGradients(model, ALONE, steps_on_host=True)
    adamw = optimizer.adamw(model, BOTH, learning_rate=0.1, gradients=waiting)
    before = model.bias.detach().clone()
    model.weight.grad = torch.ones_like(model.weight)
    waiting.end_piece()
    assert model.weight.grad is None
    optimizer.step(adamw, BOTH, learning_rate=0.1)
    assert torch.equal(model.bias, before)
    assert model.bias not in adamw.state


def test_the_state_of_an_optimizer_on_the_host_is_on_no_other_device() -> None:
    """Meta tensors stand for those of a GPU: they are on another device than the host."""
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    found = {}
    for settings in (PLAIN, BOTH):
        kind = HostAdamW if settings is BOTH else torch.optim.AdamW
        adamw = kind(model.parameters()) if settings is PLAIN else optimizer.adamw(model, settings, learning_rate=0.1)
        optimizer.allocate_moments(adamw)
        found[kind] = {value.device.type for each in adamw.state.values() for value in each.values()}
    assert found == {torch.optim.AdamW: {"meta"}, HostAdamW: {"cpu"}}
