"""Settings of the learning algorithm: its variants, and values that replace their defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.section import Common, Section
from tailrace.config.variants import CORRECTIONS, LOSSES, CorrectionName, EstimatorName, LossName, Range


class ImportanceSamplingSettings(Section):
    """Correction for the gap between rollout and training log-probs."""

    type: Common[CorrectionName] = "none"
    """Which correction; any but `none` needs `old_logprobs = "recompute"`. docs/algorithms.md has the formulas."""
    clip_low: NonNegativeFloat | None = None
    """Lower bound of the ratio; default: the type's own (`icepop` 0.5, `geo_mask` 0.99, else 0)."""
    clip_high: Common[PositiveFloat | None] = None
    """Upper bound of the ratio; default: the type's own (`tis` 2, `geo_mask` 1.01, else 5)."""

    @property
    def clip(self) -> Range:
        """The bounds that apply: those given, else those of the type."""
        return _given_or(CORRECTIONS[self.type].clip, self.clip_low, self.clip_high)


class OverlongSettings(Section):
    """Responses of about `rollout.max_response_length` tokens."""

    buffer_length: Common[NonNegativeInt] = 0
    """Last tokens before `max_response_length`, in which a growing penalty is subtracted from the score; 0: none."""
    penalty_factor: PositiveFloat = 1.0
    """Penalty of a response of `max_response_length` tokens."""
    filter_truncated: Common[bool] = False
    """Exclude truncated responses from the loss. They still count in the mean score of their group."""


class AlgorithmSettings(Section):
    """What is learned from the scores."""

    advantage_estimator: Common[EstimatorName] = "grpo"
    """How scores become advantages; `gae` is PPO with a critic."""
    normalize_by_std: Common[bool] = True
    """`grpo`: divide by the group's standard deviation."""
    loss: Common[LossName] = "ppo"
    """Policy loss."""
    clip_ratio_low: Common[PositiveFloat | None] = None
    """Lower clip range of the probability ratio; default: the loss's own (`ppo` 0.2, `gspo` 3e-4, `cispo` 1)."""
    clip_ratio_high: Common[PositiveFloat | None] = None
    """Upper clip range of the probability ratio (clip-higher); default: the loss's own (`ppo` 0.28, `gspo` 4e-4,
    `cispo` 4)."""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """`ppo`: dual clip. Tokens with a negative advantage and a ratio above this give no gradient (usually 3). Default:
    no dual clip."""
    sapo_temperature_pos: PositiveFloat = 1.0
    """`sapo`: how fast the gradient fades as the ratio moves away from 1, for positive advantages."""
    sapo_temperature_neg: PositiveFloat = 1.05
    """`sapo`: how fast the gradient fades as the ratio moves away from 1, for negative advantages."""
    loss_agg_mode: Common[Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]] = "token-mean"
    """How token losses of a batch are averaged."""
    kl_loss_coef: Common[NonNegativeFloat] = 0.0
    """Weight of the k3 KL term to the starting model."""
    stale_tokens: Literal["train", "mask-prefix", "mask-old"] = "train"
    """Which tokens of older weight versions are trained. `train`: all. `mask-prefix`: in a group that was resumed, only
    tokens after its last resume. `mask-old`: only tokens that are at most `max_token_age` versions old."""
    max_token_age: NonNegativeInt = 1
    """Oldest tokens that `stale_tokens = "mask-old"` trains, in versions before the one being trained."""
    old_logprobs: Common[Literal["behaviour", "recompute"]] = "behaviour"
    """Log-probs in the denominator of the ratio. `behaviour`: those of the engine. `recompute`: those that the trainer
    computes before the step."""
    importance_sampling: ImportanceSamplingSettings = ImportanceSamplingSettings()
    overlong: OverlongSettings = OverlongSettings()
    dynamic_sampling: Common[bool] = False
    """Drop groups whose scores are all equal (they give no gradient), and generate other groups instead."""
    max_useless_groups: PositiveInt = 1000
    """Number of dropped groups in a row after which the run fails."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """`gae`: discount per token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """`gae`: lambda. At 1 advantages are computed from the score, at 0 from the critic's next value."""
    critic_learning_rate: Common[PositiveFloat] = 1e-5
    """`gae`: peak learning rate of the critic. Warm-up and schedule are those of the policy."""

    @property
    def clip(self) -> Range:
        """The clip range that applies: the one given, else the one of the loss. Losses without a clip do not use it."""
        own = LOSSES[self.loss].clip or Range(low=0.0, high=0.0)
        return _given_or(own, self.clip_ratio_low, self.clip_ratio_high)


def _given_or(own: Range, low: float | None, high: float | None) -> Range:
    return Range(low=own.low if low is None else low, high=own.high if high is None else high)
