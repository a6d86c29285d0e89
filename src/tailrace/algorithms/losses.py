"""Policy losses, per token. One function per loss; averaging is ``aggregation.py``'s business.

B sequences, T response positions.

    ratio = exp(logprobs - old_logprobs)
    ppo   = max(-A * ratio, -A * clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Beyond it ``exp`` has no meaning for learning and would soon overflow; the gradient there is zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    loss_BT: Tensor
    is_clipped_BT: Tensor
    """Where the clip decided, so the token has no gradient."""


def ppo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> PolicyLoss:
    """Clipped surrogate loss with separate clip ranges below and above 1 (clip-higher)."""
    ratio_BT = torch.exp((logprobs_BT - old_logprobs_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    unclipped_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    return PolicyLoss(
        loss_BT=torch.maximum(unclipped_BT, clipped_BT),
        is_clipped_BT=(clipped_BT > unclipped_BT).detach(),
    )
