"""Settings of the learning algorithm: variants, and where to move away from their defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tailrace.config.section import Section
from tailrace.config.variants import CORRECTIONS, LOSSES, CorrectionName, EstimatorName, LossName, Range


class ImportanceSamplingSettings(Section):
    type: CorrectionName = "none"
    """Correction for the gap between rollout and training log-probs: `none`, `tis`, `seq_tis`, `icepop`,
    `geo_mask` or `decoupled`."""
    clip_low: NonNegativeFloat | None = None
    """Lower bound of the ratio; default: the type's own (`icepop` 0.5, `geo_mask` 0.99, else 0)."""
    clip_high: PositiveFloat | None = None
    """Upper bound of the ratio; default: the type's own (`tis` 2, `geo_mask` 1.01, else 5)."""

    @property
    def clip(self) -> Range:
        """The bounds in force."""
        return _given_or(CORRECTIONS[self.type].clip, self.clip_low, self.clip_high)


class OverlongSettings(Section):
    buffer_length: NonNegativeInt = 0
    """Tokens before `max_response_length` in which a growing penalty is taken off the score; 0: no penalty."""
    penalty_factor: PositiveFloat = 1.0
    """The penalty at the end of the buffer."""
    filter_truncated: bool = False
    """Responses cut off by their token budget count for their group but not in the loss."""


class AlgorithmSettings(Section):
    advantage_estimator: EstimatorName = "grpo"
    """How scores become advantages: `grpo`, `dr_grpo`, `rloo`, `reinforce++`, `reinforce++-baseline`, or `gae`
    (PPO with a critic)."""
    normalize_by_std: bool = True
    """`grpo`: divide by the group's standard deviation."""
    loss: LossName = "ppo"
    """Policy loss: `ppo`, `gspo`, `cispo` or `sapo`."""
    clip_ratio_low: PositiveFloat | None = None
    """Lower clip range of the probability ratio; default: the loss's own (`ppo` 0.2, `gspo` 3e-4, `cispo` 1)."""
    clip_ratio_high: PositiveFloat | None = None
    """Upper clip range of the probability ratio (clip-higher); default: the loss's own (`ppo` 0.28, `gspo` 4e-4,
    `cispo` 4)."""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """`ppo`: largest ratio at which a negative advantage still pulls (dual clip, usually 3); default: no limit."""
    sapo_temperature_pos: PositiveFloat = 1.0
    """`sapo`: how fast the gradient fades away from ratio 1 for positive advantages."""
    sapo_temperature_neg: PositiveFloat = 1.05
    """`sapo`: the same for negative advantages."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"] = "token-mean"
    """How token losses of a batch are averaged."""
    kl_loss_coef: NonNegativeFloat = 0.0
    """Weight of the k3 KL term to the starting model."""
    stale_tokens: Literal["train", "mask-prefix", "mask-old"] = "train"
    """Tokens of versions before the one being trained: all train; `mask-prefix`: of a group that was resumed, only the
    tokens after its last resumption; `mask-old`: only tokens at most `max_token_age` versions old."""
    max_token_age: NonNegativeInt = 1
    """For `stale_tokens = "mask-old"`."""
    old_logprobs: Literal["behaviour", "recompute"] = "behaviour"
    """Log-probs in the ratio's denominator: the engine's, or recomputed by the trainer before the step."""
    importance_sampling: ImportanceSamplingSettings = ImportanceSamplingSettings()
    overlong: OverlongSettings = OverlongSettings()
    dynamic_sampling: bool = False
    """Groups whose scores are all equal teach nothing: leave them out and generate another group in their place."""
    max_useless_groups: PositiveInt = 1000
    """Groups in a row that may be left out before the run gives up."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """`gae`: discount per token."""
    lam: float = Field(default=1.0, ge=0, le=1)
    """`gae`: 1 waits for the score, 0 trusts the critic's next value."""
    critic_learning_rate: PositiveFloat = 1e-5
    """`gae`: peak learning rate of the critic; its course is the policy's."""
    value_clip: PositiveFloat = 0.5
    """`gae`: how far the critic's prediction may move from its old one and still lower the loss."""

    @property
    def clip(self) -> Range:
        """The clip range in force; of no meaning for a loss without one."""
        own = LOSSES[self.loss].clip or Range(low=0.0, high=0.0)
        return _given_or(own, self.clip_ratio_low, self.clip_ratio_high)


def _given_or(own: Range, low: float | None, high: float | None) -> Range:
    return Range(low=own.low if low is None else low, high=own.high if high is None else high)
