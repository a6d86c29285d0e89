"""Corrections for tokens drawn from a policy other than the one the ratio starts from.

B sequences, T response positions. The weights are constants: no gradient flows through them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def truncated_importance_weights(old_logprobs_BT: Tensor, behaviour_logprobs_BT: Tensor, *, clip_high: float) -> Tensor:
    """min(pi_old / pi_behaviour, clip_high) for each token."""
    return torch.exp((old_logprobs_BT - behaviour_logprobs_BT).detach()).clamp(max=clip_high)
