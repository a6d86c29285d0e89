"""Samples tokens from logits and computes their log-probs. Each row of a batch has its own sampling parameters.

Order of operations: temperature, top-k, top-p (over what top-k left), min-p. ``logprobs`` are those of the
distribution that was sampled from; ``behaviour_logprobs`` are those before top-k, top-p and min-p. A greedy row
(temperature 0) takes the most likely token and reports log-probs at temperature 1. Every row is computed by itself,
so its result does not depend on the rows around it.

Letters: N rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.engines.contract import Sampling

NO_TOP_K = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """Sampling parameters of all rows of a batch. A field is None if no row needs that operation."""

    temperature_N1: torch.Tensor | None
    is_greedy_N1: torch.Tensor | None
    top_k_N1: torch.Tensor | None
    top_p_N1: torch.Tensor | None
    log_min_p_N1: torch.Tensor | None
    is_truncated_N1: torch.Tensor | None


class SamplingColumns:
    """Sampling parameters of every slot, as arrays. For a greedy slot top-k, top-p and min-p are off."""

    def __init__(self, num_slots: int) -> None:
        self.temperature: NDArray[np.float32] = np.ones(num_slots, np.float32)
        self.is_greedy: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.top_k: NDArray[np.int64] = np.full(num_slots, NO_TOP_K, np.int64)
        self.top_p: NDArray[np.float32] = np.ones(num_slots, np.float32)
        self.min_p: NDArray[np.float32] = np.zeros(num_slots, np.float32)

    def set(self, slot: int, sampling: Sampling) -> None:
        is_greedy = sampling.temperature == 0
        self.is_greedy[slot] = is_greedy
        self.temperature[slot] = 1.0 if is_greedy else sampling.temperature
        self.top_k[slot] = NO_TOP_K if is_greedy or sampling.top_k is None else sampling.top_k
        self.top_p[slot] = 1.0 if is_greedy else sampling.top_p
        self.min_p[slot] = 0.0 if is_greedy else sampling.min_p

    @property
    def is_truncated(self) -> NDArray[np.bool_]:
        """For each slot: whether it uses top-k, top-p or min-p."""
        found: NDArray[np.bool_] = (self.top_k != NO_TOP_K) | (self.top_p < 1.0) | (self.min_p > 0.0)
        return found

    def gather(self, slots: NDArray[np.int64], num_rows: int, device: torch.device) -> SamplingBatch:
        """Sampling parameters of these slots. Padding rows get neutral values."""

        def column(values: NDArray[Any], neutral: float) -> torch.Tensor | None:
            taken = values[slots]
            if (taken == neutral).all():
                return None
            padded = np.pad(taken, (0, num_rows - len(slots)), constant_values=neutral)
            return torch.from_numpy(padded).to(device).unsqueeze(1)

        min_p = column(self.min_p, 0.0)
        return SamplingBatch(
            temperature_N1=column(self.temperature, 1.0),
            is_greedy_N1=column(self.is_greedy, False),
            top_k_N1=column(self.top_k, NO_TOP_K),
            top_p_N1=column(self.top_p, 1.0),
            log_min_p_N1=None if min_p is None else min_p.log(),
            is_truncated_N1=column(self.is_truncated, False),
        )


def sample(
    logits_NV: torch.Tensor, uniforms_N: torch.Tensor, settings: SamplingBatch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Tokens, their log-probs, and (if any row is truncated) their log-probs before truncation."""
    scores = logits_NV.float()
    if settings.temperature_N1 is not None:
        scores = scores / settings.temperature_N1
    full = torch.log_softmax(scores, dim=-1)
    logprobs = full
    if settings.is_truncated_N1 is not None:
        # Rows that are not cut keep their log-probs as they are, down to the last bit.
        logprobs = torch.where(settings.is_truncated_N1, torch.log_softmax(_truncate(full, settings), dim=-1), full)
    tokens_N1 = _draw(logprobs, uniforms_N.unsqueeze(1))
    if settings.is_greedy_N1 is not None:
        tokens_N1 = torch.where(settings.is_greedy_N1, logits_NV.argmax(dim=-1, keepdim=True), tokens_N1)
    taken = logprobs.gather(1, tokens_N1).squeeze(1)
    if settings.is_truncated_N1 is None:
        return tokens_N1.squeeze(1), taken, None
    return tokens_N1.squeeze(1), taken, full.gather(1, tokens_N1).squeeze(1)


def _draw(logprobs_NV: torch.Tensor, uniforms_N1: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution: the first token whose cumulative sum exceeds ``uniform`` times the total."""
    # softmax rather than exp: it works row by row, so a row's place in the batch cannot change its rounding.
    # A GPU adds in pieces, so its sums may shrink by rounding where a token has no weight: in fp64 by far too little.
    precision = torch.float64 if logprobs_NV.is_cuda else None
    sums = torch.softmax(logprobs_NV, dim=-1).cumsum(dim=-1, dtype=precision)
    tokens = torch.searchsorted(sums, uniforms_N1 * sums[:, -1:], right=True)
    return tokens.clamp_(max=logprobs_NV.shape[1] - 1)


def _truncate(logprobs_NV: torch.Tensor, settings: SamplingBatch) -> torch.Tensor:
    kept = logprobs_NV
    if settings.top_k_N1 is not None:
        kept = _keep_top_k(kept, settings.top_k_N1)
    if settings.top_p_N1 is not None:
        kept = _keep_top_p(kept, settings.top_p_N1)
    if settings.log_min_p_N1 is not None:
        threshold = kept.amax(dim=-1, keepdim=True) + settings.log_min_p_N1
        kept = kept.masked_fill(kept < threshold, -torch.inf)
    return kept


def _keep_top_k(logprobs_NV: torch.Tensor, top_k_N1: torch.Tensor) -> torch.Tensor:
    """Keep exactly k tokens (of equal ones those with lower ids), or all if k is at least the vocabulary size."""
    vocabulary = logprobs_NV.shape[1]
    bounded = top_k_N1.clamp(max=vocabulary)
    order = logprobs_NV.argsort(dim=-1, descending=True, stable=True)
    is_dropped = (torch.arange(vocabulary, device=logprobs_NV.device) >= bounded).expand_as(order)
    return logprobs_NV.masked_fill(torch.empty_like(is_dropped).scatter(1, order, is_dropped), -torch.inf)


def _keep_top_p(logprobs_NV: torch.Tensor, top_p_N1: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose probabilities add up to at least p."""
    ranked, order = torch.softmax(logprobs_NV, dim=-1).sort(dim=-1, descending=True, stable=True)
    mass_before = ranked.cumsum(dim=-1) - ranked
    is_dropped = (mass_before >= top_p_N1) & (top_p_N1 < 1.0)
    is_dropped[:, 0] = False
    return logprobs_NV.masked_fill(torch.empty_like(is_dropped).scatter(1, order, is_dropped), -torch.inf)
