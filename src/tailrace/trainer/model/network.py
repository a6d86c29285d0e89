"""The Transformers module that is trained, and the log-probs it gives to response tokens.

U nodes of a tree of tokens, N response tokens, D hidden width, V vocabulary.

Log-probs are ``log_softmax(logits / temperature)`` in at least fp32. Logits exist only for response tokens, and for
long batches only a chunk at a time (recomputed in the backward pass), so memory does not grow with N * V. On CUDA one
kernel reads log-probs and entropy off the logits (``fused_scores.py``).
Dropout is off: a forward pass is a function of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tailrace.trainer.model import tree_attention
from tailrace.trainer.model.collate import MicroBatch
from tailrace.trainer.model.routers import Routers
from tailrace.trainer.model.tree_attention import take
from tailrace.trainer.ranks.ranks import ALONE, Ranks

LOGITS_PER_CHUNK = 2**28
"""Most logits (N * V) that exist at the same time: 1 GiB in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    logprobs_N: Tensor
    entropy_N: Tensor
    """Entropy of the distribution from which a token was drawn, without gradient."""


class Network:
    """A causal language model seen as a scorer of tokens."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        temperature: float,
        autocast: torch.dtype | None = None,
        logits_per_chunk: int = LOGITS_PER_CHUNK,
        ranks: Ranks = ALONE,
        replays_routing: bool = False,
        is_compiled: bool = False,
    ) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0 to train, got {temperature}")
        self.model = model
        self._temperature = temperature
        self._autocast = autocast
        self._logits_per_chunk = logits_per_chunk
        self._ranks = ranks
        self.routers = Routers(
            model, sees_trees=tree_attention.sees_trees(model), replays=replays_routing, is_compiled=is_compiled
        )
        self._run = ranks.shard(model, autocast)
        self.device = next(model.parameters()).device
        self._is_fused = self.device.type == "cuda" and find_spec("triton") is not None
        with self._casting():  # ranks gather weights in less than fp32, and the residual stream is in fp32
            self._has_plain_head = bool(self._run(_has_plain_head, model))
        if is_compiled:
            tree_attention.compile_layers(model)

    def score(self, micro: MicroBatch, *, watches_routing: bool = True) -> TokenScores:
        """``watches_routing``: whether the experts that the rollout chose count, in figures and in replay."""
        self.routers.begin(micro.routing if watches_routing else None)
        logprobs_N, entropy_N = self._run(self._score, micro)
        return TokenScores(logprobs_N=logprobs_N, entropy_N=entropy_N)

    def _casting(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self._autocast, enabled=self._autocast is not None)

    def _score(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        with self._casting():
            if self._has_plain_head:
                hidden_UD = tree_attention.run(self.model.base_model, micro.tree, "last_hidden_state")
                hidden_ND = take(hidden_UD, micro.source_N)
                return self._ranks.by_tokens(self._score_hidden, hidden_ND, micro.targets_N)  # type: ignore[no-any-return]
            logits_UV = tree_attention.run(self.model, micro.tree, "logits")
            return self._score_logits(take(logits_UV, micro.source_N), micro.targets_N)

    def _score_hidden(self, hidden_ND: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        head = self.model.get_output_embeddings()
        chunk = max(1, self._logits_per_chunk // head.weight.shape[0])
        if len(targets_N) <= chunk:
            return self._score_logits(head(hidden_ND), targets_N)

        def score_chunk(hidden_CD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
            return self._score_logits(head(hidden_CD), targets_C)

        pairs = zip(hidden_ND.split(chunk), targets_N.split(chunk), strict=True)
        parts = [checkpoint(score_chunk, *pair, use_reentrant=False) for pair in pairs]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropy for _, entropy in parts])

    def _score_logits(self, logits_NV: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        if self._is_fused:
            from tailrace.trainer.model import fused_scores  # only GPUs need Triton

            return fused_scores.score(logits_NV, targets_N, self._temperature)
        logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32)) / self._temperature
        logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
        with torch.no_grad():
            entropy_N = torch.special.entr(logprobs_NV.exp()).sum(dim=-1)
        return logprobs_NV.gather(1, targets_N[:, None]).squeeze(1), entropy_N


def _has_plain_head(model: PreTrainedModel) -> Tensor:
    """Are the logits just the output embedding of the last hidden state (no scaling, no soft cap)?"""
    head = model.get_output_embeddings()
    if head is None:
        return torch.tensor(False)
    device = next(model.parameters()).device
    input_ids = torch.arange(min(4, model.config.get_text_config().vocab_size), device=device)[None]
    with torch.no_grad():
        logits = model(input_ids=input_ids, use_cache=False).logits
        plain = head(model.base_model(input_ids=input_ids, use_cache=False).last_hidden_state)
    return torch.tensor(plain.shape == logits.shape and torch.allclose(plain, logits, rtol=1e-4, atol=1e-4))
