"""Which responses have log-probs that are not finite of their own.

Attention multiplies what a token does not see by zero, and 0 * NaN is NaN: one broken token breaks those before it, and
through the nodes that responses share also innocent ones. Each suspect is therefore scored again by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from tailrace.core.ids import ResponseId, Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.model.collate import collate
from tailrace.trainer.model.network import Network

MOST_NAMED = 8


def names(network: Network, suspects: Sequence[Sample]) -> str:
    """The guilty ones; all suspects where none is broken by itself."""
    guilty = (sample for sample in suspects if not _is_finite_alone(network, sample))
    found = list(itertools.islice(guilty, MOST_NAMED + 1)) or suspects
    return listed([sample.response_id for sample in found])


def listed(found: Sequence[ResponseId]) -> str:
    return ", ".join(map(str, found[:MOST_NAMED])) + (", ..." if len(found) > MOST_NAMED else "")


@torch.no_grad()
def _is_finite_alone(network: Network, sample: Sample) -> bool:
    micro = collate([sample], [0.0], Version(0), network.device)
    return bool(micro.is_finite(micro.spread(network.score(micro).logprobs_N)).all())
