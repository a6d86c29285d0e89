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
class Estimator:
    compares_siblings: bool = False
    """A group needs at least two responses."""
    whitens_batch: bool = False
    """An advantage depends on every response of the batch, so a batch cannot be trained in pieces."""
    needs_critic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    clip: Range | None
    """Clip range around 1 where the settings give none; None: the loss has no clip."""
    has_dual_clip: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    clip: Range
    """Bounds of the ratio where the settings give none."""
    is_active: bool = True


ESTIMATORS: dict[EstimatorName, Estimator] = {
    "grpo": Estimator(compares_siblings=True),
    "dr_grpo": Estimator(compares_siblings=True),
    "rloo": Estimator(compares_siblings=True),
    "reinforce++": Estimator(whitens_batch=True),
    "reinforce++-baseline": Estimator(compares_siblings=True, whitens_batch=True),
    "gae": Estimator(needs_critic=True),
}

LOSSES: dict[LossName, Loss] = {
    "ppo": Loss(clip=Range(low=0.2, high=0.28), has_dual_clip=True),
    # A sequence's ratio is a mean over many tokens: it hardly leaves 1.
    "gspo": Loss(clip=Range(low=3e-4, high=4e-4)),
    # No floor, and a ceiling of 5.
    "cispo": Loss(clip=Range(low=1.0, high=4.0)),
    "sapo": Loss(clip=None),
}

CORRECTIONS: dict[CorrectionName, Correction] = {
    "none": Correction(clip=Range(low=0.0, high=float("inf")), is_active=False),
    "tis": Correction(clip=Range(low=0.0, high=2.0)),
    "seq_tis": Correction(clip=Range(low=0.0, high=5.0)),
    "icepop": Correction(clip=Range(low=0.5, high=5.0)),
    "geo_mask": Correction(clip=Range(low=0.99, high=1.01)),
    "decoupled": Correction(clip=Range(low=0.0, high=5.0)),
}
