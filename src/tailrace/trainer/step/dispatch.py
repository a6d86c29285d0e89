"""Finds the function for the name of an advantage estimator, a loss or a correction. Only this file looks names up.

B sequences, T response positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tailrace.algorithms import advantages, corrections, losses
from tailrace.algorithms.corrections import Correction, Ratios
from tailrace.algorithms.losses import PolicyLoss
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.variants import CorrectionName, EstimatorName, LossName


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Inputs of every advantage estimator, one entry per response."""

    scores_B: Tensor
    group_B: Tensor
    num_tokens_B: Tensor
    """Loss tokens of each response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """Inputs of every policy loss, one entry per token."""

    logprobs_BT: Tensor
    old_logprobs_BT: Tensor
    advantages_BT: Tensor
    """Or B x 1, one for all tokens of a response."""
    mask_BT: Tensor


def _grpo(given: Judged, settings: AlgorithmSettings) -> Tensor:
    return advantages.grpo(given.scores_B, given.group_B, normalize_by_std=settings.normalize_by_std)


def _dr_grpo(given: Judged, settings: AlgorithmSettings) -> Tensor:
    return advantages.dr_grpo(given.scores_B, given.group_B)


def _rloo(given: Judged, settings: AlgorithmSettings) -> Tensor:
    return advantages.rloo(given.scores_B, given.group_B)


def _reinforce_plus_plus(given: Judged, settings: AlgorithmSettings) -> Tensor:
    return advantages.reinforce_plus_plus(given.scores_B, given.num_tokens_B)


def _reinforce_plus_plus_baseline(given: Judged, settings: AlgorithmSettings) -> Tensor:
    return advantages.reinforce_plus_plus_baseline(given.scores_B, given.group_B, given.num_tokens_B)


def _left_to_the_critic(given: Judged, settings: AlgorithmSettings) -> Tensor:
    """Return zeros: with ``gae`` the critic computes the advantages later, one per token."""
    return torch.zeros_like(given.scores_B)


def _ppo(terms: PolicyTerms, settings: AlgorithmSettings) -> PolicyLoss:
    return losses.ppo(
        terms.logprobs_BT,
        terms.old_logprobs_BT,
        terms.advantages_BT,
        clip_ratio_low=settings.clip.low,
        clip_ratio_high=settings.clip.high,
        clip_ratio_c=settings.clip_ratio_c,
    )


def _gspo(terms: PolicyTerms, settings: AlgorithmSettings) -> PolicyLoss:
    return losses.gspo(
        terms.logprobs_BT,
        terms.old_logprobs_BT,
        terms.advantages_BT,
        terms.mask_BT,
        clip_ratio_low=settings.clip.low,
        clip_ratio_high=settings.clip.high,
    )


def _cispo(terms: PolicyTerms, settings: AlgorithmSettings) -> PolicyLoss:
    return losses.cispo(
        terms.logprobs_BT,
        terms.old_logprobs_BT,
        terms.advantages_BT,
        clip_ratio_low=settings.clip.low,
        clip_ratio_high=settings.clip.high,
    )


def _sapo(terms: PolicyTerms, settings: AlgorithmSettings) -> PolicyLoss:
    return losses.sapo(
        terms.logprobs_BT,
        terms.old_logprobs_BT,
        terms.advantages_BT,
        temperature_positive=settings.sapo_temperature_pos,
        temperature_negative=settings.sapo_temperature_neg,
    )


def _no_correction(found: Ratios, *, clip_low: float, clip_high: float) -> Correction:
    return corrections.none(found)


ESTIMATORS: dict[EstimatorName, Callable[[Judged, AlgorithmSettings], Tensor]] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "reinforce++": _reinforce_plus_plus,
    "reinforce++-baseline": _reinforce_plus_plus_baseline,
    "gae": _left_to_the_critic,
}

LOSSES: dict[LossName, Callable[[PolicyTerms, AlgorithmSettings], PolicyLoss]] = {
    "ppo": _ppo,
    "gspo": _gspo,
    "cispo": _cispo,
    "sapo": _sapo,
}

CORRECTIONS: dict[CorrectionName, Callable[..., Correction]] = {
    "none": _no_correction,
    "tis": corrections.tis,
    "seq_tis": corrections.seq_tis,
    "icepop": corrections.icepop,
    "geo_mask": corrections.geo_mask,
    "decoupled": corrections.decoupled,
}


def judge(given: Judged, settings: AlgorithmSettings) -> Tensor:
    """Return one advantage per response."""
    return ESTIMATORS[settings.advantage_estimator](given, settings)


def policy_loss(terms: PolicyTerms, settings: AlgorithmSettings) -> PolicyLoss:
    return LOSSES[settings.loss](terms, settings)


def correction(found: Ratios, settings: AlgorithmSettings) -> Correction:
    chosen = settings.importance_sampling
    return CORRECTIONS[chosen.type](found, clip_low=chosen.clip.low, clip_high=chosen.clip.high)
