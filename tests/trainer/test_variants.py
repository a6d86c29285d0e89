"""Each estimator, loss and correction inside the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from tailrace.config import variants
from tailrace.config.algorithm_settings import AlgorithmSettings, ImportanceSamplingSettings, OverlongSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.config.variants import CorrectionName, EstimatorName, LossName
from tailrace.trainer.batch import Sample
from tailrace.trainer.step import dispatch
from tailrace.trainer.trainer import Trainer
from trainer.probes import gradient, moved, near_the_policy, reference_logprobs, weights

MakeTrainer = Callable[..., Trainer]
Groups = list[list[Sample]]
MakeGroups = Callable[..., Groups]
STREAMABLE = [
    *[{"advantage_estimator": name} for name in ("grpo", "dr_grpo", "rloo")],
    *[{"loss": name, "loss_agg_mode": "seq-mean-token-mean"} for name in ("gspo", "cispo", "sapo")],
    {"clip_ratio_c": 3.0},
    *[
        {"old_logprobs": "recompute", "importance_sampling": {"type": name}}
        for name in ("tis", "seq_tis", "icepop", "geo_mask", "decoupled")
    ],
]


def metrics_of(trainer: Trainer, groups: Groups) -> dict[str, float]:
    return trainer.train(groups).metrics


def test_every_name_has_its_facts_and_its_function() -> None:
    for names, facts, functions in (
        (EstimatorName, variants.ESTIMATORS, dispatch.ESTIMATORS),
        (LossName, variants.LOSSES, dispatch.LOSSES),
        (CorrectionName, variants.CORRECTIONS, dispatch.CORRECTIONS),
    ):
        assert set(get_args(names)) == facts.keys() == functions.keys()


@pytest.mark.parametrize("chosen", STREAMABLE, ids=lambda chosen: "-".join(str(value) for value in chosen.values()))
def test_a_streamed_batch_has_the_gradient_of_the_whole_one(
    make_trainer: MakeTrainer, make_groups: MakeGroups, exact_model_path: Path, chosen: dict[str, object]
) -> None:
    groups = near_the_policy(make_trainer(path=exact_model_path), make_groups(3, num_groups=6), noise=0.02)
    captured = []
    for pieces in ([groups], [groups[:1], groups[1:3], groups[3:]], [[group] for group in reversed(groups)]):
        trainer = make_trainer(
            algorithm=AlgorithmSettings.model_validate(chosen),
            settings=TrainerSettings(learning_rate=1e-3, max_tokens_per_gpu=64),
            path=exact_model_path,
        )
        trainer.model.double()
        for piece in pieces:
            trainer.accumulate(piece)
        captured.append(gradient(trainer.model))
        trainer.finish_step()
    assert captured[0].abs().max() > 1e-3
    for other in captured[1:]:
        assert (captured[0] - other).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["reinforce++", "reinforce++-baseline"])
def test_what_whitens_the_batch_is_refused_in_pieces(
    make_trainer: MakeTrainer, make_groups: MakeGroups, name: EstimatorName
) -> None:
    trainer, groups = make_trainer(algorithm=AlgorithmSettings(advantage_estimator=name)), make_groups()
    trainer.accumulate(groups[:2])
    with pytest.raises(ValueError, match=r"whitens advantages over the batch.*cannot be trained in pieces"):
        trainer.accumulate(groups[2:])


@pytest.mark.parametrize("name", ["reinforce++", "reinforce++-baseline"])
def test_whitened_advantages_sum_to_nothing_over_the_tokens_of_the_batch(
    make_trainer: MakeTrainer, make_groups: MakeGroups, name: EstimatorName
) -> None:
    # At ratio 1 a token's loss is minus its advantage, so the mean over tokens is that of whitened numbers.
    algorithm = AlgorithmSettings(advantage_estimator=name, old_logprobs="recompute")
    found = metrics_of(make_trainer(algorithm=algorithm), make_groups())
    assert found["actor/pg_loss"] == pytest.approx(0.0, abs=1e-6)
    assert found["actor/grad_norm"] > 0.01


def test_reinforce_plus_plus_learns_from_groups_of_one(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    groups = [[dataclasses.replace(group[0], score=float(place % 2))] for place, group in enumerate(make_groups())]
    plain = metrics_of(make_trainer(), groups)
    whitened = metrics_of(make_trainer(algorithm=AlgorithmSettings(advantage_estimator="reinforce++")), groups)
    assert plain["actor/grad_norm"] == 0.0
    assert whitened["actor/grad_norm"] > 0.0


@pytest.mark.parametrize("estimator", get_args(EstimatorName))
@pytest.mark.parametrize("loss", get_args(LossName))
def test_rewarded_tokens_become_more_likely(
    make_trainer: MakeTrainer, make_groups: MakeGroups, estimator: EstimatorName, loss: LossName
) -> None:
    trainer = make_trainer(algorithm=AlgorithmSettings(advantage_estimator=estimator, loss=loss))
    group = [dataclasses.replace(sample, score=float(place == 0)) for place, sample in enumerate(make_groups()[1])]
    before = reference_logprobs(trainer, group[0]).sum().item()
    for step in range(3):
        trainer.train(near_the_policy(trainer, [group], noise=0.0, seed=step))
    assert reference_logprobs(trainer, group[0]).sum().item() > before


def test_at_ratio_1_gspo_and_sapo_have_ppos_gradient_and_so_has_cispo(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    found = {}
    for name in get_args(LossName):
        algorithm = AlgorithmSettings(loss=name, loss_agg_mode="seq-mean-token-mean", old_logprobs="recompute")
        trainer = make_trainer(algorithm=algorithm)
        trainer.accumulate(make_groups())
        found[name] = gradient(trainer.model)
    for name in ("gspo", "cispo", "sapo"):
        torch.testing.assert_close(found[name], found["ppo"], rtol=0, atol=1e-5)


def test_a_batch_that_teaches_nothing_is_a_version_with_the_same_weights(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    trainer = make_trainer(settings=TrainerSettings(learning_rate=1e-3, weight_decay=0.1))
    before = weights(trainer.model)
    equal = [[dataclasses.replace(sample, score=1.0) for sample in group] for group in make_groups()]
    assert trainer.train(equal).version == 1
    assert torch.equal(weights(trainer.model), before)


@pytest.mark.parametrize("old_logprobs", ["behaviour", "recompute"])
def test_ratios_are_logged_without_any_correction(
    make_trainer: MakeTrainer, make_groups: MakeGroups, old_logprobs: str
) -> None:
    trainer = make_trainer(algorithm=AlgorithmSettings(old_logprobs=old_logprobs))
    groups = near_the_policy(trainer, make_groups(), noise=0.3)
    samples = [sample for group in groups for sample in group if sample.response.mask.any()]
    gaps = [
        (reference_logprobs(trainer, sample).detach().numpy() - sample.response.logprobs)[sample.response.mask != 0]
        for sample in samples
    ]
    found = metrics_of(trainer, groups)
    tokens = np.exp(np.concatenate(gaps))
    assert found["importance/ratio_mean"] == pytest.approx(tokens.mean(), rel=1e-4)
    assert found["importance/ratio_max"] == pytest.approx(tokens.max(), rel=1e-4)
    assert found["importance/seq_ratio_mean"] == pytest.approx(np.mean([np.exp(gap.sum()) for gap in gaps]), rel=1e-4)
    assert found["importance/seq_ratio_max"] == pytest.approx(max(np.exp(gap.sum()) for gap in gaps), rel=1e-4)
    assert found["importance/geo_ratio_mean"] == pytest.approx(np.mean([np.exp(gap.mean()) for gap in gaps]), rel=1e-4)
    assert found["importance/geo_ratio_max"] == pytest.approx(max(np.exp(gap.mean()) for gap in gaps), rel=1e-4)
    assert found["importance/weight_mean"] == 1.0
    assert (found["importance/frac_clipped"], found["importance/frac_masked"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("chosen", "counted"),
    [
        (ImportanceSamplingSettings(type="tis", clip_low=0.9, clip_high=1.1), "importance/frac_clipped"),
        (ImportanceSamplingSettings(type="icepop", clip_low=0.9, clip_high=1.1), "importance/frac_masked"),
    ],
)
def test_the_fraction_of_tokens_out_of_range_is_logged(
    make_trainer: MakeTrainer, make_groups: MakeGroups, chosen: ImportanceSamplingSettings, counted: str
) -> None:
    algorithm = AlgorithmSettings(old_logprobs="recompute", importance_sampling=chosen)
    trainer = make_trainer(algorithm=algorithm)
    groups = near_the_policy(trainer, make_groups(), noise=0.3)
    out, count = 0, 0
    for sample in (sample for group in groups for sample in group):
        ratio = np.exp(reference_logprobs(trainer, sample).detach().numpy() - sample.response.logprobs)
        mask = sample.response.mask != 0
        out, count = out + ((ratio < 0.9) | (ratio > 1.1))[mask].sum(), count + mask.sum()
    found = metrics_of(trainer, groups)
    assert 0 < out < count
    assert found[counted] == pytest.approx(out / count)
    assert found["importance/frac_clipped"] + found["importance/frac_masked"] == found[counted]


def test_responses_that_the_engine_saw_differently_do_not_pull_under_geo_mask(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    algorithm = AlgorithmSettings(
        old_logprobs="recompute", importance_sampling=ImportanceSamplingSettings(type="geo_mask")
    )
    trainer = make_trainer(algorithm=algorithm)
    groups = near_the_policy(trainer, make_groups(), noise=0.0)
    far = [[moved(sample, sample.response.logprobs + 0.5) for sample in group] for group in groups]
    found = metrics_of(trainer, far)
    assert found["importance/frac_masked"] == 1.0
    assert found["actor/grad_norm"] == 0.0
    assert metrics_of(make_trainer(algorithm=algorithm), groups)["actor/grad_norm"] > 0.0


def with_lengths(make_trainer: MakeTrainer, make_groups: MakeGroups) -> Groups:
    """One group of equal scores whose first member is the longest."""
    group = sorted(make_groups(num_groups=1)[0], key=lambda sample: -len(sample.response))
    ids = sorted(sample.response_id for sample in group)
    return [
        [
            dataclasses.replace(
                sample, response_id=name, response=dataclasses.replace(sample.response, response_id=name), score=1.0
            )
            for name, sample in zip(ids, group, strict=True)
        ]
    ]


def test_the_overlong_penalty_tells_long_responses_from_short_ones(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    groups = with_lengths(make_trainer, make_groups)
    lengths = [len(sample.response) for sample in groups[0]]
    assert lengths[0] > lengths[1]
    algorithm = AlgorithmSettings(overlong=OverlongSettings(buffer_length=lengths[0] - lengths[1], penalty_factor=0.5))
    trainer = make_trainer(algorithm=algorithm, max_response_length=lengths[0])
    found = metrics_of(trainer, groups)
    assert metrics_of(make_trainer(), groups)["actor/grad_norm"] == 0.0
    assert found["actor/grad_norm"] > 0.0
    assert found["overlong/penalty_mean"] == pytest.approx(-0.5 / len(lengths))


def test_a_penalty_without_the_budget_it_ends_at_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="buffer_length is 7 but the trainer was not told the max_response_length"):
        make_trainer(algorithm=AlgorithmSettings(overlong=OverlongSettings(buffer_length=7)))


def test_filtered_responses_count_for_their_group_but_not_in_the_loss(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    largest = max(make_groups(), key=len)
    assert len(largest) > 2
    group = [dataclasses.replace(sample, score=float(place)) for place, sample in enumerate(largest)]
    cut = [dataclasses.replace(group[0], is_truncated=True), *group[1:]]
    masked = dataclasses.replace(group[0].response, mask=np.zeros_like(group[0].response.mask))
    by_hand = [dataclasses.replace(group[0], response=masked), *group[1:]]
    filtering = AlgorithmSettings(overlong=OverlongSettings(filter_truncated=True))
    gradients = []
    for algorithm, given in ((filtering, cut), (AlgorithmSettings(), by_hand), (AlgorithmSettings(), cut)):
        trainer = make_trainer(algorithm=algorithm)
        trainer.accumulate([given])
        gradients.append(gradient(trainer.model))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-5)
    assert (gradients[0] - gradients[2]).abs().max() > 1e-3
    found = metrics_of(make_trainer(algorithm=filtering), [cut])
    assert found["overlong/frac_filtered"] == pytest.approx(1 / len(cut))


def test_what_is_not_asked_for_is_not_logged(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    found = metrics_of(make_trainer(), make_groups())
    assert not [name for name in found if name.startswith(("overlong/", "critic/"))]
