"""Token losses become one number, in two halves: a sum and a denominator.

Both halves add up over micro-batches. Dividing once, by the denominator of the whole batch, is therefore exact
however the batch was cut:

    loss(batch) = sum over micro-batches of loss_sum / sum over micro-batches of denominator

B sequences, T response positions. Masked tokens count nowhere; a sequence without any unmasked token counts in no
denominator.

    token-mean            sum of token losses                    / number of tokens
    seq-mean-token-mean   sum over sequences of the token mean   / number of sequences
    seq-mean-token-sum    sum over sequences of the token sum    / number of sequences
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

LossAggMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]


def loss_sum(loss_BT: Tensor, mask_BT: Tensor, mode: LossAggMode) -> Tensor:
    """The unnormalised sum of a micro-batch."""
    # where, not a product: a masked NaN stays out of the sum and of its gradient.
    kept_BT = torch.where(mask_BT, loss_BT, 0.0)
    match mode:
        case "token-mean" | "seq-mean-token-sum":
            return kept_BT.sum()
        case "seq-mean-token-mean":
            return (kept_BT.sum(dim=1) / mask_BT.sum(dim=1).clamp(min=1)).sum()
        case _:
            raise ValueError(f"unknown loss_agg_mode {mode!r}")


def denominator(mask_BT: Tensor, mode: LossAggMode) -> Tensor:
    """What a micro-batch adds to the batch's denominator."""
    match mode:
        case "token-mean":
            return mask_BT.sum()
        case "seq-mean-token-mean" | "seq-mean-token-sum":
            return mask_BT.any(dim=1).sum()
        case _:
            raise ValueError(f"unknown loss_agg_mode {mode!r}")
