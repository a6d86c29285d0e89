"""A step on a batch in pieces is the step on the whole batch; what cannot be so is refused. Settings come with each."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings, ImportanceSamplingSettings, OverlongSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer
from trainer.probes import gradient, reference_logprobs, weights

MakeTrainer = Callable[..., Trainer]
Groups = list[list[Sample]]
MakeGroups = Callable[..., Groups]
SMALL = TrainerSettings(learning_rate=1e-3, max_tokens_per_gpu=64)
CORRECTED = {"old_logprobs": "recompute", "importance_sampling": ImportanceSamplingSettings(type="seq_tis")}
VARIANTS = {
    "ppo": AlgorithmSettings(),
    "ppo-dual-clip-kl": AlgorithmSettings(clip_ratio_c=3.0, kl_loss_coef=0.1, loss_agg_mode="seq-mean-token-mean"),
    "gspo": AlgorithmSettings(loss="gspo", loss_agg_mode="seq-mean-token-mean"),
    "cispo-rloo": AlgorithmSettings(loss="cispo", advantage_estimator="rloo"),
    "sapo-dr": AlgorithmSettings(loss="sapo", advantage_estimator="dr_grpo", loss_agg_mode="seq-mean-token-sum"),
    "corrected": AlgorithmSettings.model_validate(CORRECTED),
    "overlong": AlgorithmSettings(overlong=OverlongSettings(buffer_length=10, filter_truncated=True)),
}


def in_fp64(trainer: Trainer) -> Trainer:
    trainer.model.double()
    if trainer.reference_model is not None:
        trainer.reference_model.double()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.1)  # away from the reference
    return trainer


def random_pieces(groups: Groups, seed: int) -> list[Groups]:
    rng, rest = random.Random(seed), list(groups)
    rng.shuffle(rest)
    pieces = []
    while rest:
        size = rng.randint(1, len(rest))
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


@pytest.mark.parametrize("name", VARIANTS)
def test_any_split_into_whole_groups_has_the_gradient_of_the_whole(
    make_trainer: MakeTrainer, make_groups: MakeGroups, exact_model_path: Path, name: str
) -> None:
    groups = make_groups(3, num_groups=6)
    captured, updated = [], []
    for pieces in ([groups], *(random_pieces(groups, seed) for seed in range(3))):
        trainer = in_fp64(
            make_trainer(algorithm=VARIANTS[name], settings=SMALL, path=exact_model_path, max_response_length=20)
        )
        for piece in pieces:
            trainer.accumulate(piece)
        captured.append(gradient(trainer.model))
        trainer.finish_step()
        updated.append(weights(trainer.model))
    assert captured[0].abs().max() > 1e-3
    assert all((captured[0] - other).abs().max() < 1e-10 for other in captured[1:])
    assert all((updated[0] - other).abs().max() < 1e-10 for other in updated[1:])


def test_a_batch_that_is_whitened_cannot_come_in_pieces(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    whitening, groups = AlgorithmSettings(advantage_estimator="reinforce++"), make_groups()
    trainer = make_trainer(algorithm=whitening)
    trainer.accumulate(groups[:2])
    with pytest.raises(ValueError, match="whitens advantages over the batch, so step 0 cannot be trained in pieces"):
        trainer.accumulate(groups[2:])
    with pytest.raises(ValueError, match="whitens advantages over the batch, so step 0 cannot be trained in pieces"):
        trainer.accumulate(groups[2:], AlgorithmSettings())


def test_pieces_with_another_denominator_are_refused(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer, groups = make_trainer(), make_groups()
    trainer.accumulate(groups[:2])
    with pytest.raises(ValueError, match="step 0 averages its losses by token-mean; seq-mean-token-sum has another"):
        trainer.accumulate(groups[2:], AlgorithmSettings(loss_agg_mode="seq-mean-token-sum"))


def test_loss_settings_that_come_with_the_samples_are_followed(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    sapo = AlgorithmSettings(loss="sapo", advantage_estimator="rloo")
    made, told = make_trainer(algorithm=sapo), make_trainer()
    made.accumulate(make_groups())
    told.accumulate(make_groups(), sapo)
    assert torch.equal(gradient(made.model), gradient(told.model))
    other = make_trainer()
    other.accumulate(make_groups())
    assert not torch.equal(gradient(made.model), gradient(other.model))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (AlgorithmSettings(kl_loss_coef=0.1), "kl_loss_coef needs the starting model"),
        (AlgorithmSettings(advantage_estimator="gae"), "gae needs a critic"),
        (AlgorithmSettings(importance_sampling=ImportanceSamplingSettings(type="tis")), "needs old_logprobs"),
    ],
)
def test_loss_settings_that_need_what_was_not_loaded_are_refused(
    make_trainer: MakeTrainer, make_groups: MakeGroups, asked: AlgorithmSettings, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_trainer().accumulate(make_groups(), asked)


def test_optimizer_settings_that_come_with_the_end_of_a_step_are_followed(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    asked = TrainerSettings(learning_rate=1e-2, weight_decay=0.1, betas=(0.5, 0.9), max_grad_norm=0.1)
    made, told = make_trainer(settings=asked), make_trainer()
    for trainer, settings in ((made, None), (told, asked)):
        trainer.accumulate(make_groups())
        metrics = trainer.finish_step(settings).metrics
        assert metrics["actor/lr"] == 1e-2
    assert torch.equal(weights(made.model), weights(told.model))


def test_forward_gives_the_logprobs_of_every_response_and_leaves_the_step_alone(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    trainer, groups = make_trainer(settings=SMALL), make_groups(num_groups=3)
    samples = [sample for group in groups for sample in group]
    trainer.accumulate(groups)
    before = gradient(trainer.model)
    found = trainer.forward(samples)
    for sample, logprobs in zip(samples, found, strict=True):
        expected = reference_logprobs(trainer, sample).detach().numpy()
        np.testing.assert_allclose(logprobs, expected, atol=1e-5)
    assert torch.equal(gradient(trainer.model), before)


def test_a_dropped_step_leaves_nothing_behind(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer, fresh = make_trainer(), make_trainer()
    trainer.accumulate(make_groups(1))
    trainer.drop_step()
    assert trainer.train(make_groups(2)).metrics == fresh.train(make_groups(2)).metrics
    assert torch.equal(weights(trainer.model), weights(fresh.model))
