"""What is read off the states of a decoder: log-probs of candidates, or the number of a reward head.

P positions, K candidates, D hidden width, V vocabulary, C tokens of a part of the vocabulary.

Logits exist only at the positions asked for, in fp32, and only for a part of the vocabulary at a time: memory does not
grow with P * V. Each sequence is computed alone, so its log-probs do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WEIGHTS_PER_PART = 2**25
"""Numbers of the output embedding that are turned into fp32 at the same time: 128 MiB."""
LOGITS_PER_PART = 2**26
"""Logits that exist at the same time: 256 MiB."""


def read_logprobs(head: nn.Linear, states: Sequence[Tensor], candidates: Sequence[Tensor]) -> list[Tensor]:
    """``log_softmax`` at the candidates: P x K of each sequence, in fp32. ``states``: P x D, behind the last norm;
    ``candidates``: P x K."""
    vocab_size, width = head.weight.shape
    size = max(1, WEIGHTS_PER_PART // width)
    rows = max(1, LOGITS_PER_PART // size)
    pieces = [_Piece(*pair) for one in zip(states, candidates, strict=True) for pair in _cut(*one, rows)]
    for start in range(0, vocab_size, size):
        weight_CD = head.weight[start : start + size].float()
        bias_C = None if head.bias is None else head.bias[start : start + size].float()
        for piece in pieces:
            piece.see(start, F.linear(piece.states_PD, weight_CD, bias_C))
    found = iter(piece.logprobs_PK for piece in pieces)
    return [torch.cat([next(found) for _ in _cut(*one, rows)]) for one in zip(states, candidates, strict=True)]


def read_reward(head: nn.Linear, state_D: Tensor) -> Tensor:
    """The number that a reward head gives to the state of the last token."""
    bias = None if head.bias is None else head.bias.float()
    return F.linear(state_D.float(), head.weight.float(), bias).squeeze(-1)


class _Piece:
    """Some positions of a sequence, and what is known of their logits so far."""

    def __init__(self, states_PD: Tensor, candidates_PK: Tensor) -> None:
        self.states_PD, self._candidates_PK = states_PD.float(), candidates_PK
        self._total_P = torch.full((len(states_PD),), -torch.inf, device=states_PD.device)
        self._logits_PK = torch.zeros(candidates_PK.shape, device=states_PD.device)

    def see(self, start: int, logits_PC: Tensor) -> None:
        """``start``: the first token of this part of the vocabulary."""
        self._total_P = torch.logaddexp(self._total_P, logits_PC.logsumexp(dim=1))
        place_PK = self._candidates_PK - start
        is_here_PK = (place_PK >= 0) & (place_PK < logits_PC.shape[1])
        here_PK = logits_PC.gather(1, place_PK.clamp(0, logits_PC.shape[1] - 1))
        self._logits_PK = torch.where(is_here_PK, here_PK, self._logits_PK)

    @property
    def logprobs_PK(self) -> Tensor:
        return self._logits_PK - self._total_P[:, None]


def _cut(states_PD: Tensor, candidates_PK: Tensor, rows: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(states_PD.split(rows), candidates_PK.split(rows), strict=True))
