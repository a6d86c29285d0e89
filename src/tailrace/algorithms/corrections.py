"""Corrections for tokens drawn from a policy other than the one the ratio starts from.

B sequences, T response positions. With r = pi_old / pi_behaviour at each loss token, the token's loss is multiplied by

    none         1
    tis          r, limited to [clip_low, clip_high]
    seq_tis      the product of the response's r, limited to [clip_low, clip_high]
    icepop       r where it is in [clip_low, clip_high], else 0
    geo_mask     1 where the geometric mean of the response's r is in [clip_low, clip_high], else 0
    decoupled    as icepop, with bounds that only stop outliers: the behaviour weight of decoupled PPO

The weights are constants: no gradient flows through them. A weight of 0 takes a token out of the loss, not out of
its denominator. What stands at masked tokens never matters; their weight is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    weights_BT: Tensor
    is_clipped_BT: Tensor
    """Where a limit replaced the ratio."""
    is_masked_BT: Tensor
    """Where the weight is 0 because the ratio is out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """How far the trained policy is from the one that generated, at three levels."""

    token_BT: Tensor
    sequence_B: Tensor
    """The product over a response's loss tokens: how much more likely the whole response is."""
    geometric_B: Tensor
    """The geometric mean over a response's loss tokens: free of its length."""


def ratios(log_ratio_BT: Tensor, mask_BT: Tensor) -> Ratios:
    """``log_ratio_BT`` is old minus behaviour log-prob. A response without loss tokens has ratio 1."""
    log_ratio_BT = torch.where(mask_BT, log_ratio_BT.detach(), 0.0)
    sum_B = log_ratio_BT.sum(dim=1)
    return Ratios(
        token_BT=_exp(log_ratio_BT),
        sequence_B=_exp(sum_B),
        geometric_B=_exp(sum_B / mask_BT.sum(dim=1).clamp(min=1)),
    )


def none(found: Ratios) -> Correction:
    """No correction; the ratios are for the log only."""
    ones_BT = torch.ones_like(found.token_BT)
    nowhere_BT = torch.zeros_like(ones_BT, dtype=torch.bool)
    return Correction(weights_BT=ones_BT, is_clipped_BT=nowhere_BT, is_masked_BT=nowhere_BT)


def tis(found: Ratios, *, clip_low: float, clip_high: float) -> Correction:
    """Truncated importance sampling, per token."""
    return _limited(found.token_BT, clip_low, clip_high)


def seq_tis(found: Ratios, *, clip_low: float, clip_high: float) -> Correction:
    """Truncated importance sampling of whole responses: every token has the response's weight."""
    return _limited(found.sequence_B[:, None].expand_as(found.token_BT), clip_low, clip_high)


def icepop(found: Ratios, *, clip_low: float, clip_high: float) -> Correction:
    """Importance sampling without the tokens on which the two policies disagree too much."""
    is_out_BT = _is_outside(found.token_BT, clip_low, clip_high)
    return _masked(torch.where(is_out_BT, 0.0, found.token_BT), is_out_BT)


def geo_mask(found: Ratios, *, clip_low: float, clip_high: float) -> Correction:
    """Drop whole responses on which the two policies disagree too much per token; weigh no other."""
    is_out_BT = _is_outside(found.geometric_B, clip_low, clip_high)[:, None].expand_as(found.token_BT)
    return _masked((~is_out_BT).to(found.token_BT.dtype), is_out_BT)


def decoupled(found: Ratios, *, clip_low: float, clip_high: float) -> Correction:
    """The behaviour weight of decoupled PPO, whose clip acts on pi / pi_old alone."""
    return icepop(found, clip_low=clip_low, clip_high=clip_high)


def _limited(ratio_BT: Tensor, clip_low: float, clip_high: float) -> Correction:
    weights_BT = ratio_BT.clamp(clip_low, clip_high)
    return Correction(
        weights_BT=weights_BT,
        is_clipped_BT=weights_BT != ratio_BT,
        is_masked_BT=torch.zeros_like(ratio_BT, dtype=torch.bool),
    )


def _masked(weights_BT: Tensor, is_masked_BT: Tensor) -> Correction:
    return Correction(weights_BT=weights_BT, is_clipped_BT=torch.zeros_like(is_masked_BT), is_masked_BT=is_masked_BT)


def _is_outside(ratio: Tensor, clip_low: float, clip_high: float) -> Tensor:
    return (ratio < clip_low) | (ratio > clip_high)


def _exp(log_ratio: Tensor) -> Tensor:
    return torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
