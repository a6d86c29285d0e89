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

from tailrace.algorithms import aggregation, corrections, kl
from tailrace.algorithms.corrections import Correction
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.trainer.model.collate import MicroBatch
from tailrace.trainer.step import dispatch
from tailrace.trainer.step.dispatch import PolicyTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    loss: Tensor
    """Unnormalised; its gradient is what a micro-batch adds to the batch's."""
    sums: dict[str, Tensor]
    """Detached; added over micro-batches."""
    largest: dict[str, Tensor]
    """Detached; the largest over micro-batches counts."""


def objective(
    micro: MicroBatch,
    advantages_BT: Tensor,
    logprobs_BT: Tensor,
    entropy_BT: Tensor,
    reference_BT: Tensor | None,
    settings: AlgorithmSettings,
) -> Objective:
    """``advantages_BT`` may be B x 1: one for all tokens of a response."""
    behaviour_logprobs_BT = micro.behaviour_logprobs_BT.to(logprobs_BT.dtype)
    old_logprobs_BT = behaviour_logprobs_BT if settings.old_logprobs == "behaviour" else logprobs_BT.detach()
    mask_BT, mode = micro.mask_BT, settings.loss_agg_mode
    terms = PolicyTerms(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=old_logprobs_BT,
        advantages_BT=advantages_BT.to(logprobs_BT.dtype),
        mask_BT=mask_BT,
    )
    policy = dispatch.policy_loss(terms, settings)
    correction, importance_sums, largest = _corrected(logprobs_BT.detach() - behaviour_logprobs_BT, mask_BT, settings)
    loss = aggregation.loss_sum(policy.loss_BT * correction.weights_BT, mask_BT, mode)
    sums = {
        "tokens": mask_BT.sum(),
        "denominator": aggregation.denominator(mask_BT, mode),
        "clipped": (policy.is_clipped_BT & mask_BT).sum(),
        "ppo_kl": total(old_logprobs_BT - logprobs_BT.detach(), mask_BT),
        "entropy": total(entropy_BT, mask_BT),
        "pg_loss": loss.detach(),
    }
    if reference_BT is not None:
        kl_loss = aggregation.loss_sum(kl.k3(logprobs_BT, reference_BT), mask_BT, mode)
        sums["kl_loss"] = kl_loss.detach()
        loss = loss + settings.kl_loss_coef * kl_loss
    mismatch_sums, largest_diff = _mismatch(micro, behaviour_logprobs_BT, logprobs_BT.detach())
    return Objective(
        loss=loss, sums=sums | importance_sums | mismatch_sums, largest=largest | {"logprob_diff": largest_diff}
    )


def total(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.where(mask_BT, values_BT, 0.0).sum(dtype=torch.float64)


def _corrected(
    log_ratio_BT: Tensor, mask_BT: Tensor, settings: AlgorithmSettings
) -> tuple[Correction, dict[str, Tensor], dict[str, Tensor]]:
    """The correction's weights, and what is logged about the ratios whether or not they are corrected.

    The ratio is that of the weights about to be updated over those that generated the token. With ``recompute`` it is
    what a correction corrects; with ``behaviour`` no correction is active and it is watched only.
    """
    found = corrections.ratios(log_ratio_BT, mask_BT)
    correction = dispatch.correction(found, settings)
    has_tokens_B = mask_BT.any(dim=1)
    sums = {
        "responses": has_tokens_B.sum(),
        "ratio": total(found.token_BT, mask_BT),
        "seq_ratio": total(found.sequence_B, has_tokens_B),
        "geo_ratio": total(found.geometric_B, has_tokens_B),
        "importance_weight": total(correction.weights_BT, mask_BT),
        "importance_clipped": (correction.is_clipped_BT & mask_BT).sum(),
        "importance_masked": (correction.is_masked_BT & mask_BT).sum(),
    }
    largest = {
        "ratio": torch.where(mask_BT, found.token_BT, 0.0).max(),
        "seq_ratio": torch.where(has_tokens_B, found.sequence_B, 0.0).max(),
        "geo_ratio": torch.where(has_tokens_B, found.geometric_B, 0.0).max(),
    }
    return correction, sums, largest


def _mismatch(micro: MicroBatch, engine_BT: Tensor, trainer_BT: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """How far engine and trainer disagree on tokens that both scored with the same weights."""
    diff_BT = torch.where(micro.is_current_BT, (engine_BT - trainer_BT).abs(), 0.0)
    sums = {
        "mismatch_tokens": micro.is_current_BT.sum(),
        "logprob_diff": diff_BT.sum(dtype=torch.float64),
        "mismatch_kl": total(kl.k3(engine_BT, trainer_BT), micro.is_current_BT),
    }
    return sums, diff_BT.max()
