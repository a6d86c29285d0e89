"""Policy losses, per token. One function per loss; averaging is ``aggregation.py``'s business.

B sequences, T response positions. ``advantages_BT`` may be B x 1: one advantage for all tokens of a sequence.

    ratio = exp(logprobs - old_logprobs)                      a token's
    s     = exp(mean over loss tokens of their log ratio)     a sequence's

    ppo   = max(-A * ratio, -A * clip(ratio))                 and at most -A * clip_ratio_c where A < 0 (dual clip)
    gspo  = max(-A * s, -A * clip(s))                         at every token of the sequence
    cispo = -A * constant(clip(ratio)) * logprobs
    sapo  = -A * sigmoid(tau * (ratio - 1)) * 4 / tau         tau depends on the sign of A

with clip(x) = x limited to [1 - clip_ratio_low, 1 + clip_ratio_high]. At ratio 1 all four have the gradient of plain
policy gradient: -A * d logprobs (gspo: of the sequence's mean log-prob).
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
    """Where the clip decided: in ppo and gspo such a token has no gradient, in cispo a limited one."""


def ppo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float | None = None,
) -> PolicyLoss:
    """Clipped surrogate loss with separate clip ranges below and above 1 (clip-higher).

    ``clip_ratio_c`` (dual clip) limits how much a negative advantage can weigh on a token whose ratio has grown.
    """
    ratio_BT = _ratio(logprobs_BT - old_logprobs_BT)
    found = _clipped_surrogate(ratio_BT, advantages_BT, clip_ratio_low, clip_ratio_high)
    if clip_ratio_c is None:
        return found
    most_BT = -advantages_BT * clip_ratio_c
    is_over_BT = ((advantages_BT < 0) & (found.loss_BT > most_BT)).detach()
    return PolicyLoss(
        loss_BT=torch.where(is_over_BT, most_BT, found.loss_BT), is_clipped_BT=found.is_clipped_BT | is_over_BT
    )


def gspo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> PolicyLoss:
    """The clipped surrogate of one ratio per sequence: the geometric mean of its loss tokens' ratios."""
    log_ratio_BT = torch.where(mask_BT, logprobs_BT - old_logprobs_BT, 0.0)
    mean_B = log_ratio_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)
    ratio_BT = _ratio(mean_B)[:, None].expand(mask_BT.shape)
    return _clipped_surrogate(ratio_BT, advantages_BT, clip_ratio_low, clip_ratio_high)


def cispo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
) -> PolicyLoss:
    """Policy gradient weighted by the clipped ratio: no token loses its gradient. ``clip_ratio_low`` 1: no floor."""
    ratio_BT = _ratio((logprobs_BT - old_logprobs_BT).detach())
    weight_BT = ratio_BT.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    return PolicyLoss(loss_BT=-advantages_BT * weight_BT * logprobs_BT, is_clipped_BT=weight_BT != ratio_BT)


def sapo(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_BT: Tensor,
    *,
    temperature_positive: float,
    temperature_negative: float,
) -> PolicyLoss:
    """A soft gate in place of the clip: the gradient fades as the ratio leaves 1, faster at a higher temperature."""
    ratio_BT = _ratio(logprobs_BT - old_logprobs_BT)
    # full_like, not Python floats in where: those would be fp32 whatever the tensors are.
    tau_BT = torch.where(
        advantages_BT > 0,
        torch.full_like(advantages_BT, temperature_positive),
        torch.full_like(advantages_BT, temperature_negative),
    )
    loss_BT = -advantages_BT * torch.sigmoid(tau_BT * (ratio_BT - 1.0)) * 4.0 / tau_BT
    return PolicyLoss(loss_BT=loss_BT, is_clipped_BT=torch.zeros_like(loss_BT, dtype=torch.bool))


def _clipped_surrogate(ratio_BT: Tensor, advantages_BT: Tensor, low: float, high: float) -> PolicyLoss:
    unclipped_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1.0 - low, 1.0 + high)
    return PolicyLoss(
        loss_BT=torch.maximum(unclipped_BT, clipped_BT),
        is_clipped_BT=(clipped_BT > unclipped_BT).detach(),
    )


def _ratio(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
