"""PPO with a critic: ``advantage_estimator = "gae"``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.model.collate import collate
from tailrace.trainer.trainer import Trainer
from trainer.probes import gradient, near_the_policy, weights

MakeTrainer = Callable[..., Trainer]
Groups = list[list[Sample]]
MakeGroups = Callable[..., Groups]
GAE = AlgorithmSettings(advantage_estimator="gae", lam=0.9, gamma=0.99, critic_learning_rate=3e-3)
CPU = torch.device("cpu")


def with_opinions(trainer: Trainer) -> Trainer:
    """A critic that already thinks something, for tests in which its first zeros would hide a mistake."""
    assert trainer.critic is not None
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        trainer.critic.model.head.weight.copy_(torch.randn(1, 32, generator=generator) * 0.3)
    return trainer


def values_of(trainer: Trainer, samples: list[Sample]) -> torch.Tensor:
    assert trainer.critic is not None
    with torch.no_grad():
        return trainer.critic.values(collate(samples, [0.0] * len(samples), Version(0), CPU))


def reference_values(trainer: Trainer, sample: Sample) -> torch.Tensor:
    """Straight from the definition: the head on the hidden state before each response token."""
    assert trainer.critic is not None
    tokens = torch.from_numpy(np.concatenate([sample.prompt, sample.response.tokens]).astype(np.int64))
    hidden = trainer.critic.model.body(input_ids=tokens[None]).last_hidden_state[0]
    return trainer.critic.model.head(hidden[len(sample.prompt) - 1 : -1]).squeeze(1)


def test_neither_padding_nor_company_changes_a_value(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer = with_opinions(make_trainer(algorithm=GAE))
    samples = [sample for group in make_groups() for sample in group]
    together = values_of(trainer, samples)
    for row, sample in enumerate(samples):
        expected = reference_values(trainer, sample).detach()
        torch.testing.assert_close(together[row, : len(expected)], expected, rtol=0, atol=2e-5)
    assert together.abs().max() > 0.1


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_streamed_batch_has_the_gradients_of_the_whole_one(
    make_trainer: MakeTrainer, make_groups: MakeGroups, exact_model_path: Path, mode: str
) -> None:
    groups = near_the_policy(make_trainer(path=exact_model_path), make_groups(3, num_groups=6), noise=0.1)
    captured, updated = [], []
    for pieces in ([groups], [groups[:1], groups[1:3], groups[3:]], [[group] for group in reversed(groups)]):
        trainer = with_opinions(
            make_trainer(
                algorithm=GAE.model_copy(update={"loss_agg_mode": mode}),
                settings=TrainerSettings(learning_rate=1e-3, max_tokens_per_gpu=64),
                path=exact_model_path,
            )
        )
        trainer.model.double()
        trainer.critic.model.double()
        for piece in pieces:
            trainer.accumulate(piece)
        captured.append(torch.cat([gradient(trainer.model), gradient(trainer.critic.model)]))
        trainer.finish_step()
        updated.append(torch.cat([weights(trainer.model), weights(trainer.critic.model)]))
    assert captured[0].abs().max() > 1e-3
    for other in captured[1:]:
        assert (captured[0] - other).abs().max() < 1e-10
    for other in updated[1:]:
        assert (updated[0] - other).abs().max() < 1e-10


def test_the_critics_gradient_is_that_of_the_formula(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    algorithm = AlgorithmSettings(advantage_estimator="gae", gamma=1.0, lam=1.0)
    trainer = with_opinions(make_trainer(algorithm=algorithm, settings=TrainerSettings(max_grad_norm=1e9)))
    groups = make_groups(5)
    errors = []
    for sample in (sample for group in groups for sample in group):
        mask = torch.from_numpy(sample.response.mask).bool()
        # With gamma and lam 1 every return is the score.
        errors.append((reference_values(trainer, sample) - sample.score)[mask])
    expected_loss = 0.5 * (torch.cat(errors) ** 2).mean()
    expected = torch.autograd.grad(expected_loss, list(trainer.critic.model.parameters()))
    norm = torch.cat([piece.flatten() for piece in expected]).norm()
    found = trainer.train(groups).metrics
    assert found["critic/vf_loss"] == pytest.approx(expected_loss.item(), rel=1e-5)
    assert found["critic/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_a_new_critic_has_no_opinion_so_the_first_advantages_are_the_scores(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    algorithm = AlgorithmSettings(advantage_estimator="gae", old_logprobs="recompute")
    groups = make_groups()
    tokens = [(sample.score, sample.num_loss_tokens) for group in groups for sample in group]
    mean = sum(score * count for score, count in tokens) / sum(count for _, count in tokens)
    found = make_trainer(algorithm=algorithm).train(groups).metrics
    assert found["critic/values/mean"] == 0.0
    assert found["critic/returns/mean"] == pytest.approx(mean)
    assert found["actor/pg_loss"] == pytest.approx(-mean, rel=1e-5)


def test_the_critic_learns_to_tell_good_prompts_from_bad(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer = make_trainer(algorithm=GAE)
    groups = [
        [dataclasses.replace(sample, score=float(place % 2)) for sample in group]
        for place, group in enumerate(make_groups())
    ]
    found = [trainer.train(groups).metrics for _ in range(25)]
    assert found[-1]["critic/vf_loss"] < 0.3 * found[0]["critic/vf_loss"]
    assert found[-1]["critic/vf_explained_var"] > 0.5
    good, bad = values_of(trainer, groups[1]), values_of(trainer, groups[0])
    assert good[:, 0].mean() > bad[:, 0].mean() + 0.3


def test_where_all_returns_are_equal_there_is_no_variance_to_explain(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    trainer = with_opinions(make_trainer(algorithm=AlgorithmSettings(advantage_estimator="gae")))
    equal = [[dataclasses.replace(sample, score=0.1) for sample in group] for group in make_groups()]
    assert "critic/vf_explained_var" not in trainer.train(equal).metrics
    assert "critic/vf_explained_var" in trainer.train(make_groups(1)).metrics


def test_a_group_of_one_is_enough(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    single = [[dataclasses.replace(group[0], score=1.0)] for group in make_groups()]
    assert make_trainer(algorithm=GAE).train(single).metrics["actor/grad_norm"] > 0.0


@pytest.mark.parametrize("saved_after", [0, 2])
def test_training_on_from_a_checkpoint_equals_never_having_stopped(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path, saved_after: int
) -> None:
    whole, first, second = (make_trainer(algorithm=GAE) for _ in range(3))
    expected = [whole.train(make_groups(step, version=step)).metrics for step in range(4)]
    for step in range(saved_after):
        first.train(make_groups(step, version=step))
    first.save(tmp_path / "step")
    second.load(tmp_path / "step")
    found = [second.train(make_groups(step, version=step)).metrics for step in range(saved_after, 4)]
    assert found == expected[saved_after:]
    assert torch.equal(weights(second.model), weights(whole.model))
    assert torch.equal(weights(second.critic.model), weights(whole.critic.model))


def test_a_critic_that_is_not_finite_stops_the_step_of_both(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer = make_trainer(algorithm=GAE)
    before = weights(trainer.model)
    with torch.no_grad():
        trainer.critic.model.head.weight[0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="gradient is"):
        trainer.train(make_groups())
    assert trainer.version == 0
    assert torch.equal(weights(trainer.model), before)
    assert all(parameter.grad is None for parameter in trainer.critic.model.parameters())


def test_the_policy_is_published_without_its_critic(make_trainer: MakeTrainer) -> None:
    plain = [name for name, _ in make_trainer().named_weights()]
    assert [name for name, _ in make_trainer(algorithm=GAE).named_weights()] == plain
