"""Scores of a group become advantages: each response is judged against its siblings.

B sequences, G groups. A group whose scores are all equal teaches nothing: its advantages are exactly zero. So is
the advantage of a group's only member. Groups may have unequal sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

STD_EPSILON = 1e-6
"""Added to the standard deviation, so that almost equal scores do not blow up."""


def grpo(scores_B: Tensor, group_B: Tensor, *, normalize_by_std: bool) -> Tensor:
    """Score minus the group's mean, over its sample standard deviation if asked.

    ``group_B`` numbers the group of each sequence, from 0.
    """
    if scores_B.shape != group_B.shape or scores_B.dim() != 1:
        raise ValueError(f"one group number per score: got {tuple(group_B.shape)} for {tuple(scores_B.shape)}")
    scores_B = scores_B.double()
    num_groups = int(group_B.max()) + 1 if len(group_B) else 0
    size_G = scores_B.new_zeros(num_groups).index_add(0, group_B, torch.ones_like(scores_B))
    mean_G = scores_B.new_zeros(num_groups).index_add(0, group_B, scores_B) / size_G
    centred_B = torch.where(has_spread(scores_B, group_B)[group_B], scores_B - mean_G[group_B], 0.0)
    if not normalize_by_std:
        return centred_B
    variance_G = scores_B.new_zeros(num_groups).index_add(0, group_B, centred_B**2) / (size_G - 1).clamp(min=1)
    return centred_B / (variance_G.sqrt()[group_B] + STD_EPSILON)


def has_spread(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Per group: do its scores differ at all? Compared exactly, so rounding cannot invent a difference."""
    num_groups = int(group_B.max()) + 1 if len(group_B) else 0
    start_G = scores_B.new_zeros(num_groups)
    highest_G = start_G.scatter_reduce(0, group_B, scores_B, "amax", include_self=False)
    lowest_G = start_G.scatter_reduce(0, group_B, scores_B, "amin", include_self=False)
    return highest_G > lowest_G
