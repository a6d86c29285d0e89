"""The loss of a micro-batch, as an unnormalised sum, with the sums behind its metrics.

B sequences, T response positions. Everything here adds up over micro-batches; ``Totals`` divides at the end.

The ratio's denominator is the log-prob of the policy that generated the token (``behaviour``), or that of the current
weights (``recompute``). There is one optimizer step per batch and dropout is off, so the log-probs that a separate
pass before the step would give are the very ones of the training pass, detached: no second pass is run.

Where sampling was truncated (top-p, top-k, min-p) behaviour means the untruncated distribution: training cannot
follow the cut, so only against that one is the ratio 1 for unchanged weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tailrace.algorithms import aggregation, corrections, kl, losses
from tailrace.config.settings import AlgorithmSettings
from tailrace.trainer.microbatch import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    loss: Tensor
    """Unnormalised; its gradient is what a micro-batch adds to the batch's."""
    sums: dict[str, Tensor]
    """Detached; added over micro-batches."""
    largest_logprob_diff: Tensor


def objective(
    micro: MicroBatch, logprobs_BT: Tensor, entropy_BT: Tensor, reference_BT: Tensor | None, settings: AlgorithmSettings
) -> Objective:
    behaviour_BT = micro.behaviour_BT.to(logprobs_BT.dtype)
    old_BT = behaviour_BT if settings.old_logprobs == "behaviour" else logprobs_BT.detach()
    policy = losses.ppo(
        logprobs_BT,
        old_BT,
        micro.advantages_B.to(logprobs_BT.dtype)[:, None],
        clip_ratio_low=settings.clip_ratio_low,
        clip_ratio_high=settings.clip_ratio_high,
    )
    mask_BT, mode = micro.mask_BT, settings.loss_agg_mode
    sums = {
        "tokens": mask_BT.sum(),
        "denominator": aggregation.denominator(mask_BT, mode),
        "clipped": (policy.is_clipped_BT & mask_BT).sum(),
        "ppo_kl": _total(old_BT - logprobs_BT.detach(), mask_BT),
        "entropy": _total(entropy_BT, mask_BT),
    }
    policy_loss_BT = policy.loss_BT
    if settings.importance_sampling.type == "tis":
        weights_BT = corrections.truncated_importance_weights(
            old_BT, behaviour_BT, clip_high=settings.importance_sampling.clip_high
        )
        policy_loss_BT = policy_loss_BT * weights_BT
        sums["importance_weight"] = _total(weights_BT, mask_BT)
    loss = aggregation.loss_sum(policy_loss_BT, mask_BT, mode)
    sums["pg_loss"] = loss.detach()
    if reference_BT is not None:
        kl_loss = aggregation.loss_sum(kl.k3(logprobs_BT, reference_BT), mask_BT, mode)
        sums["kl_loss"] = kl_loss.detach()
        loss = loss + settings.kl_loss_coef * kl_loss
    mismatch_sums, largest = _mismatch(micro, behaviour_BT, logprobs_BT.detach())
    return Objective(loss=loss, sums=sums | mismatch_sums, largest_logprob_diff=largest)


def _mismatch(micro: MicroBatch, engine_BT: Tensor, trainer_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """How far engine and trainer disagree on tokens that both scored with the same weights."""
    diff_BT = torch.where(micro.is_current_BT, (engine_BT - trainer_BT).abs(), 0.0)
    sums = {
        "mismatch_tokens": micro.is_current_BT.sum(),
        "logprob_diff": diff_BT.sum(dtype=torch.float64),
        "mismatch_kl": _total(kl.k3(engine_BT, trainer_BT), micro.is_current_BT),
    }
    return sums, diff_BT.max()


def _total(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, values_BT, 0.0).sum(dtype=torch.float64)
