"""Scores become advantages, one per response.

B sequences, G groups. Estimators that compare siblings give exactly zero to a group whose scores are all equal, and
to a group's only member. Groups may have unequal sizes. ``group_B`` numbers the group of each sequence, from 0.

    grpo                    (score - group mean) / group standard deviation
    dr_grpo                 score - group mean
    rloo                    score - mean of the others in the group
    reinforce++             score, whitened over the batch
    reinforce++-baseline    score - group mean, whitened over the batch
    gae                     per token, with a critic: ``values.py``

Whitening counts each response as often as it has loss tokens, because its advantage stands at each of them. It needs
the whole batch at once; the others need whole groups only.
"""

from __future__ import annotations

import torch
from torch import Tensor

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that almost equal scores do not blow up."""
WHITENING_EPSILON = 1e-8
"""Added to the variance of a batch before whitening divides by its root."""


def grpo(scores_B: Tensor, group_B: Tensor, *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Tensor:
    """Score minus the group's mean, over its sample standard deviation if asked."""
    centred_B = dr_grpo(scores_B, group_B)
    if not normalize_by_std:
        return centred_B
    size_G = _group_sum(torch.ones_like(centred_B), group_B)
    variance_G = _group_sum(centred_B**2, group_B) / (size_G - 1).clamp(min=1)
    return centred_B / (variance_G.sqrt()[group_B] + epsilon)


def dr_grpo(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Score minus the group's mean: no division, so that easy and hard prompts keep their weight."""
    if scores_B.shape != group_B.shape or scores_B.dim() != 1:
        raise ValueError(f"one group number per score: got {tuple(group_B.shape)} for {tuple(scores_B.shape)}")
    scores_B = scores_B.double()
    mean_G = _group_sum(scores_B, group_B) / _group_sum(torch.ones_like(scores_B), group_B)
    return torch.where(has_spread(scores_B, group_B)[group_B], scores_B - mean_G[group_B], 0.0)


def rloo(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Score minus the mean of its siblings (leave one out), which is n / (n - 1) times the distance from the mean."""
    centred_B = dr_grpo(scores_B, group_B)
    size_B = _group_sum(torch.ones_like(centred_B), group_B)[group_B]
    return centred_B * size_B / (size_B - 1).clamp(min=1)


def reinforce_plus_plus(scores_B: Tensor, num_tokens_B: Tensor) -> Tensor:
    """The score against all scores of the batch."""
    return whiten(scores_B, num_tokens_B)


def reinforce_plus_plus_baseline(scores_B: Tensor, group_B: Tensor, num_tokens_B: Tensor) -> Tensor:
    """Distance from the group's mean, on the scale of the whole batch."""
    return whiten(dr_grpo(scores_B, group_B), num_tokens_B)


def whiten(values_B: Tensor, weights_B: Tensor, *, epsilon: float = WHITENING_EPSILON) -> Tensor:
    """Mean 0 and sample variance 1 when value i stands ``weights_B[i]`` times; equal values give exactly zero."""
    if values_B.shape != weights_B.shape or values_B.dim() != 1:
        raise ValueError(f"one weight per value: got {tuple(weights_B.shape)} for {tuple(values_B.shape)}")
    values_B, weights_B = values_B.double(), weights_B.double()
    counted_B = values_B[weights_B > 0]
    if len(counted_B) == 0 or counted_B.max() == counted_B.min():
        return torch.zeros_like(values_B)
    count = weights_B.sum()
    centred_B = values_B - (values_B * weights_B).sum() / count
    variance = (centred_B**2 * weights_B).sum() / (count - 1).clamp(min=1)
    return centred_B * torch.rsqrt(variance + epsilon)


def has_spread(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Per group: do its scores differ at all? Compared exactly, so rounding cannot invent a difference."""
    start_G = scores_B.new_zeros(_num_groups(group_B))
    highest_G = start_G.scatter_reduce(0, group_B, scores_B, "amax", include_self=False)
    lowest_G = start_G.scatter_reduce(0, group_B, scores_B, "amin", include_self=False)
    return highest_G > lowest_G


def _group_sum(values_B: Tensor, group_B: Tensor) -> Tensor:
    return values_B.new_zeros(_num_groups(group_B)).index_add(0, group_B, values_B)


def _num_groups(group_B: Tensor) -> int:
    return int(group_B.max()) + 1 if len(group_B) else 0
