from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings, ImportanceSamplingSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer
from trainer.probes import gradient, reference_logprobs, weights

MakeTrainer = Callable[..., Trainer]
Groups = list[list[Sample]]
MakeGroups = Callable[..., Groups]
MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")


def in_fp64_and_away_from_the_reference(trainer: Trainer) -> None:
    trainer.model.double()
    if trainer.reference_model is not None:
        trainer.reference_model.double()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.1)


def with_trainer_logprobs(trainer: Trainer, groups: Groups, temperature: float = 1.0) -> Groups:
    """The groups as if this trainer's current weights had generated them."""

    def rescored(sample: Sample) -> Sample:
        logprobs = reference_logprobs(trainer, sample, temperature).float().detach().numpy()
        response = dataclasses.replace(sample.response, logprobs=logprobs, behaviour_logprobs=logprobs)
        return dataclasses.replace(sample, response=response)

    return [[rescored(sample) for sample in group] for group in groups]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kl_loss_coef", [0.0, 0.1])
def test_a_streamed_batch_has_the_gradient_of_the_whole_one(
    make_trainer: MakeTrainer, make_groups: MakeGroups, exact_model_path: Path, mode: str, kl_loss_coef: float
) -> None:
    algorithm = AlgorithmSettings(loss_agg_mode=mode, kl_loss_coef=kl_loss_coef)
    settings = TrainerSettings(learning_rate=1e-3, max_tokens_per_gpu=64)
    groups = make_groups(3, num_groups=6)
    captured, updated = [], []
    for pieces in ([groups], [groups[:1], groups[1:3], groups[3:]], [[group] for group in reversed(groups)]):
        trainer = make_trainer(algorithm=algorithm, settings=settings, path=exact_model_path)
        in_fp64_and_away_from_the_reference(trainer)
        for piece in pieces:
            trainer.accumulate(piece)
        captured.append(gradient(trainer.model))
        trainer.finish_step()
        updated.append(weights(trainer.model))
    assert captured[0].abs().max() > 1e-3
    for other in captured[1:]:
        assert (captured[0] - other).abs().max() < 1e-10
    for other in updated[1:]:
        assert (updated[0] - other).abs().max() < 1e-10


def test_the_gradient_is_that_of_the_formula(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    algorithm = AlgorithmSettings(loss_agg_mode="seq-mean-token-mean", normalize_by_std=False)
    trainer = make_trainer(algorithm=algorithm, settings=TrainerSettings(learning_rate=1e-3, max_grad_norm=1e9))
    trainer.model.double()
    groups = make_groups(5)
    losses = []
    for group in groups:
        mean = np.mean([sample.score for sample in group])
        for sample in group:
            mask = torch.from_numpy(sample.response.mask).bool()
            if not mask.any():
                continue
            ratio = torch.exp(reference_logprobs(trainer, sample) - torch.from_numpy(sample.response.logprobs))
            advantage = sample.score - mean
            losses.append(torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))[mask].mean())
    expected_loss = torch.stack(losses).mean()
    expected = torch.autograd.grad(expected_loss, list(trainer.model.parameters()))
    expected_loss = expected_loss.detach()
    result = trainer.train(groups)
    norm = torch.cat([piece.flatten() for piece in expected]).norm()
    assert result.metrics["actor/pg_loss"] == pytest.approx(float(expected_loss), rel=1e-9)
    # Llama's norms compute in fp32 whatever the weights are, so dividing late or early rounds differently.
    assert result.metrics["actor/grad_norm"] == pytest.approx(float(norm), rel=1e-6)


def test_two_equal_runs_end_with_bit_identical_weights(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    runs = []
    for _ in range(2):
        trainer = make_trainer()
        results = [trainer.train(make_groups(step, version=step)) for step in range(3)]
        runs.append((weights(trainer.model), [result.metrics for result in results]))
    assert torch.equal(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_training_order_is_by_id_not_by_arrival(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    groups = make_groups()
    shuffled = [list(reversed(group)) for group in reversed(groups)]
    first, second = make_trainer(), make_trainer()
    first.train(groups)
    second.train(shuffled)
    assert torch.equal(weights(first.model), weights(second.model))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equal_weights_show_no_mismatch_and_a_ratio_of_one(
    make_trainer: MakeTrainer, make_groups: MakeGroups, temperature: float
) -> None:
    trainer = make_trainer(temperature=temperature)
    groups = with_trainer_logprobs(trainer, make_groups(), temperature)
    metrics = trainer.train(groups).metrics
    assert metrics["mismatch/logprob_abs_diff_max"] < 1e-5
    assert metrics["mismatch/logprob_abs_diff"] <= metrics["mismatch/logprob_abs_diff_max"]
    assert 0.0 <= metrics["mismatch/kl"] < 1e-9
    assert abs(metrics["actor/ppo_kl"]) < 1e-6
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert metrics["actor/entropy"] > 0.0


def test_mismatch_covers_only_tokens_of_the_current_version(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer = make_trainer()
    groups = with_trainer_logprobs(trainer, make_groups())

    def half_stale(sample: Sample) -> Sample:
        """The first half is of an unknown older version with log-probs far away."""
        length = len(sample.response)
        half = length // 2
        logprobs = sample.response.logprobs - np.where(np.arange(length) < half, 1.0, 0.0).astype(np.float32)
        versions = ((Version(-1), half), (Version(0), length - half))
        response = dataclasses.replace(
            sample.response, logprobs=logprobs, behaviour_logprobs=logprobs, versions=versions
        )
        return dataclasses.replace(sample, response=response)

    metrics = trainer.train([[half_stale(sample) for sample in group] for group in groups]).metrics
    assert metrics["mismatch/logprob_abs_diff_max"] < 1e-5
    assert metrics["actor/ppo_kl"] < -0.1
    assert not any(name.startswith("mismatch/") for name in trainer.train(groups).metrics)


def test_truncated_sampling_is_compared_by_its_untruncated_logprobs(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    trainer = make_trainer()
    groups = with_trainer_logprobs(trainer, make_groups())

    def truncated(sample: Sample) -> Sample:
        response = dataclasses.replace(sample.response, logprobs=sample.response.logprobs + np.float32(0.5))
        return dataclasses.replace(sample, response=response)

    metrics = trainer.train([[truncated(sample) for sample in group] for group in groups]).metrics
    assert metrics["mismatch/logprob_abs_diff_max"] < 1e-5
    assert abs(metrics["actor/ppo_kl"]) < 1e-6


def test_recomputed_logprobs_give_a_ratio_of_one_and_tis_weighs_the_gap(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    correction = ImportanceSamplingSettings(type="tis", clip_high=1.5)
    trainer = make_trainer(algorithm=AlgorithmSettings(old_logprobs="recompute", importance_sampling=correction))
    groups = make_groups()
    total, count = 0.0, 0
    for sample in (sample for group in groups for sample in group):
        gap = reference_logprobs(trainer, sample).detach().numpy() - sample.response.logprobs
        mask = sample.response.mask != 0
        total += np.minimum(np.exp(gap), 1.5)[mask].sum()
        count += mask.sum()
    metrics = trainer.train(groups).metrics
    assert metrics["actor/ppo_kl"] == 0.0
    assert metrics["actor/pg_clipfrac"] == 0.0
    assert metrics["importance/weight_mean"] == pytest.approx(total / count, rel=1e-5)


def test_importance_sampling_on_top_of_behaviour_ratios_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="recompute"):
        make_trainer(algorithm=AlgorithmSettings(importance_sampling=ImportanceSamplingSettings(type="tis")))


def test_the_kl_term_is_zero_at_the_starting_model_and_grows(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    trainer = make_trainer(algorithm=AlgorithmSettings(kl_loss_coef=0.01))
    losses = [trainer.train(make_groups(step, version=step)).metrics["actor/kl_loss"] for step in range(3)]
    assert losses[0] == pytest.approx(0.0, abs=1e-9)
    assert losses[2] > losses[0]


def test_groups_of_equal_scores_teach_nothing_but_are_counted(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    scores = [1.0, 0.0, 1.0, None]
    groups = [
        [
            dataclasses.replace(sample, score=float(member) if score is None else score)
            for member, sample in enumerate(group)
        ]
        for score, group in zip(scores, make_groups(num_groups=4), strict=True)
    ]
    trainer = make_trainer()
    trainer.accumulate(groups[:3])
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    trainer.accumulate(groups[3:])
    metrics = trainer.finish_step().metrics
    assert metrics["actor/grad_norm"] > 0.0


def test_rewarded_tokens_become_more_likely(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer = make_trainer()
    group = with_trainer_logprobs(trainer, make_groups(num_groups=1))[0]
    group = [dataclasses.replace(sample, score=float(number == 0)) for number, sample in enumerate(group)]
    before = reference_logprobs(trainer, group[0]).sum().item()
    for _ in range(3):
        trainer.train([group])
    assert reference_logprobs(trainer, group[0]).sum().item() > before


def test_gradient_checkpointing_and_dropout_settings_change_nothing(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    plain = make_trainer()
    saving = make_trainer(settings=TrainerSettings(learning_rate=1e-3, gradient_checkpointing=True))
    results = [trainer.train(make_groups()) for trainer in (plain, saving)]
    assert results[0].metrics == results[1].metrics
    assert torch.equal(weights(plain.model), weights(saving.model))


def test_a_step_that_is_not_finite_is_refused_and_names_the_responses(
    make_trainer: MakeTrainer, make_groups: MakeGroups, untied_model_path: Path
) -> None:
    trainer, groups = make_trainer(path=untied_model_path), make_groups()
    only_here = dataclasses.replace(groups[1][2], prompt=np.array([0], np.int32))
    groups[1][2] = only_here
    embedding = trainer.model.get_input_embeddings().weight
    original = embedding.detach().clone()
    with torch.no_grad():
        embedding[0] = float("nan")
    with pytest.raises(FloatingPointError, match=f"not finite for {only_here.response_id}$"):
        trainer.train(groups)
    assert trainer.version == 0
    with torch.no_grad():
        embedding.copy_(original)
    untouched = make_trainer(path=untied_model_path)
    assert trainer.train(groups).metrics == untouched.train(groups).metrics
    assert torch.equal(weights(trainer.model), weights(untouched.model))


def test_a_response_is_not_blamed_for_a_broken_token_of_its_sibling(
    make_trainer: MakeTrainer, make_groups: MakeGroups, untied_model_path: Path
) -> None:
    """They share the prompt, whose tokens are broken by what stands behind them in one of the two."""
    trainer, groups = make_trainer(path=untied_model_path), make_groups()
    guilty = max(groups[1], key=lambda sample: len(sample.response))
    guilty.response.tokens[0] = 0  # no other response has it
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight[0] = float("nan")
    with pytest.raises(FloatingPointError, match=f"not finite for {guilty.response_id}$"):
        trainer.train(groups)


def test_of_many_broken_responses_some_are_named(
    make_trainer: MakeTrainer, make_groups: MakeGroups, untied_model_path: Path
) -> None:
    trainer, groups = make_trainer(path=untied_model_path), make_groups()
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.fill_(float("nan"))
    names = sorted(str(sample.response_id) for group in groups for sample in group if sample.num_loss_tokens)
    assert len(names) > 8
    with pytest.raises(FloatingPointError, match=f"not finite for {', '.join(names[:8])}, ...$"):
        trainer.train(groups)


def test_a_group_split_over_two_calls_is_refused(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer, groups = make_trainer(), make_groups()
    trainer.accumulate([groups[0][:1]])
    with pytest.raises(ValueError, match="train:0:0"):
        trainer.accumulate([groups[1], groups[0][1:]])
    trainer.accumulate(groups[1:])


def test_a_step_without_groups_is_refused(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="no groups"):
        make_trainer().finish_step()


def test_a_batch_without_loss_tokens_changes_no_weight(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    trainer = make_trainer()
    before = weights(trainer.model)
    masked = [
        [
            dataclasses.replace(
                sample, response=dataclasses.replace(sample.response, mask=np.zeros_like(sample.response.mask))
            )
            for sample in group
        ]
        for group in make_groups()
    ]
    result = trainer.train(masked)
    assert result.version == 1
    assert result.metrics["actor/grad_norm"] == 0.0
    assert torch.equal(weights(trainer.model), before)


def test_what_stands_at_masked_tokens_never_matters(make_trainer: MakeTrainer, make_groups: MakeGroups) -> None:
    def without_masked_logprobs(sample: Sample) -> Sample:
        logprobs = np.where(sample.response.mask, sample.response.behaviour_logprobs, np.nan).astype(np.float32)
        response = dataclasses.replace(sample.response, logprobs=logprobs, behaviour_logprobs=logprobs)
        return dataclasses.replace(sample, response=response)

    groups = make_groups()
    stripped = [[without_masked_logprobs(sample) for sample in group] for group in groups]
    assert any(np.isnan(sample.response.behaviour_logprobs).any() for group in stripped for sample in group)
    first, second = make_trainer(), make_trainer()
    first.train(groups)
    second.train(stripped)
    assert torch.equal(weights(first.model), weights(second.model))


def test_a_response_without_tokens_counts_for_its_group_only(
    make_trainer: MakeTrainer, make_groups: MakeGroups
) -> None:
    trainer, group = make_trainer(), make_groups(num_groups=1)[0][:2]
    nothing, no_mask = np.empty(0, np.float32), np.empty(0, np.uint8)
    empty = dataclasses.replace(
        group[0].response,
        tokens=np.empty(0, np.int32),
        logprobs=nothing,
        behaviour_logprobs=nothing,
        mask=no_mask,
        versions=(),
    )
    scored = [
        dataclasses.replace(group[0], response=empty, score=1.0),
        dataclasses.replace(group[1], score=0.0),
    ]
    metrics = trainer.train([scored]).metrics
    assert metrics["actor/grad_norm"] > 0.0


def test_weights_are_offered_once_each_in_a_fixed_order_and_rollout_precision(
    make_trainer: MakeTrainer, model_path: Path
) -> None:
    names = [name for name, _ in make_trainer().named_weights()]
    assert names == [name for name, _ in make_trainer().named_weights()]
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    trainer = Trainer(
        model_path,
        model=ModelSettings(dtype="bfloat16", device="cpu"),
        settings=TrainerSettings(),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_steps=1,
        seed=0,
    )
    assert {tensor.dtype for _, tensor in trainer.named_weights()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {torch.float32}
