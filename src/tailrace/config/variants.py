"""The variants of the learning algorithm: one row each, with the facts that settings, rules and the trainer share.

What a variant computes is in ``tailrace.algorithms``; the trainer joins the two in ``trainer/step/dispatch.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EstimatorName = Literal["grpo", "dr_grpo", "rloo", "reinforce++", "reinforce++-baseline", "gae"]
LossName = Literal["ppo", "gspo", "cispo", "sapo"]
CorrectionName = Literal["none", "tis", "seq_tis", "icepop", "geo_mask", "decoupled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorVariant:
    compares_siblings: bool = False
    """A group needs at least two responses."""
    whitens_batch: bool = False
    """An advantage depends on every response of the batch, so a batch cannot be trained in pieces."""
    needs_critic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LossVariant:
    clip: Range | None
    """Clip range around 1 where the settings give none; None: the loss has no clip."""
    has_dual_clip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionVariant:
    clip: Range
    """Bounds of the ratio where the settings give none."""
    is_active: bool = True


ESTIMATORS: dict[EstimatorName, EstimatorVariant] = {
    "grpo": EstimatorVariant(compares_siblings=True),
    "dr_grpo": EstimatorVariant(compares_siblings=True),
    "rloo": EstimatorVariant(compares_siblings=True),
    "reinforce++": EstimatorVariant(whitens_batch=True),
    "reinforce++-baseline": EstimatorVariant(compares_siblings=True, whitens_batch=True),
    "gae": EstimatorVariant(needs_critic=True),
}

LOSSES: dict[LossName, LossVariant] = {
    "ppo": LossVariant(clip=Range(low=0.2, high=0.28), has_dual_clip=True),
    # A sequence's ratio is a mean over many tokens: it hardly leaves 1.
    "gspo": LossVariant(clip=Range(low=3e-4, high=4e-4)),
    # No floor, and a ceiling of 5.
    "cispo": LossVariant(clip=Range(low=1.0, high=4.0)),
    "sapo": LossVariant(clip=None),
}

CORRECTIONS: dict[CorrectionName, CorrectionVariant] = {
    "none": CorrectionVariant(clip=Range(low=0.0, high=float("inf")), is_active=False),
    "tis": CorrectionVariant(clip=Range(low=0.0, high=2.0)),
    "seq_tis": CorrectionVariant(clip=Range(low=0.0, high=5.0)),
    "icepop": CorrectionVariant(clip=Range(low=0.5, high=5.0)),
    "geo_mask": CorrectionVariant(clip=Range(low=0.99, high=1.01)),
    "decoupled": CorrectionVariant(clip=Range(low=0.0, high=5.0)),
}
