"""Per-token estimates of the divergence between two policies. B sequences, T response positions."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


def k3(logprobs_BT: Tensor, reference_logprobs_BT: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = reference - policy: never negative, zero where they agree.

    Over tokens drawn from the policy its mean is KL(policy || reference).
    """
    gap_BT = (reference_logprobs_BT - logprobs_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # expm1(d) - d, not exp(d) - d - 1: for small gaps the latter is rounding noise of either sign.
    return (torch.expm1(gap_BT) - gap_BT).clamp(min=0.0)
