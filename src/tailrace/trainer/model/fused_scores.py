"""Log-probs and entropy of tokens, read off the logits in one pass: a Triton kernel for CUDA.

N tokens, V vocabulary. In plain torch a log-softmax in fp32 and its entropy read or write N * V numbers about twenty
times. Here the logits are read once for the scores and once for their gradient, in the precision they have. All sums
are in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
_NEVER = tl.constexpr(-1.0e30)
"""Logits are at least this, so that no difference of two of them is undefined."""


@triton.jit
def _score(logits, targets, logprobs, entropies, lses, num_logits, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_logits
    largest = tl.full([], _NEVER, tl.float32)
    total = 0.0  # of exp(x - largest)
    weighted = 0.0  # of exp(x - largest) * (x - largest)
    for start in range(0, num_logits, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(logits + columns, mask=columns < num_logits, other=_NEVER).to(tl.float32) * scale
        x = tl.where(x < _NEVER, _NEVER, x)
        shift = largest
        largest = tl.maximum(largest, tl.max(x, axis=0))
        shift -= largest
        part = tl.exp(x - largest)
        weighted = tl.exp(shift) * (weighted + shift * total) + tl.sum(part * (x - largest), axis=0)
        total = tl.exp(shift) * total + tl.sum(part, axis=0)
    lse = largest + tl.log(total)
    target = tl.load(targets + row)
    tl.store(lses + row, lse)
    tl.store(logprobs + row, tl.load(logits + target).to(tl.float32) * scale - lse)
    tl.store(entropies + row, tl.log(total) - weighted / total)


@triton.jit
def _differentiate(logits, targets, lses, gradients, found, num_logits, scale, BLOCK: tl.constexpr):
    row, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK
    columns = start + tl.arange(0, BLOCK)
    is_inside = columns < num_logits
    x = tl.load(logits + row * num_logits + columns, mask=is_inside, other=0.0).to(tl.float32) * scale
    is_target = columns == tl.load(targets + row)
    gradient = tl.load(gradients + row) * scale
    value = gradient * (is_target.to(tl.float32) - tl.exp(x - tl.load(lses + row)))
    tl.store(found + row * num_logits + columns, value.to(found.dtype.element_ty), mask=is_inside)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        logits_NV = logits_NV.contiguous()
        num_tokens, num_logits = logits_NV.shape
        logprobs_N, entropy_N, lse_N = (
            torch.empty(num_tokens, device=logits_NV.device, dtype=torch.float32) for _ in range(3)
        )
        if num_tokens:
            _score[(num_tokens,)](
                logits_NV, targets_N, logprobs_N, entropy_N, lse_N, num_logits, scale, BLOCK=BLOCK, num_warps=8
            )
        ctx.save_for_backward(logits_NV, targets_N, lse_N)
        ctx.scale = scale
        ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits_NV, targets_N, lse_N = ctx.saved_tensors
        found_NV = torch.empty_like(logits_NV)
        num_tokens, num_logits = logits_NV.shape
        if num_tokens:
            _differentiate[(num_tokens, triton.cdiv(num_logits, BLOCK))](
                logits_NV, targets_N, lse_N, gradients[0].contiguous(), found_NV, num_logits, ctx.scale, BLOCK=BLOCK
            )
        return found_NV, None, None


def score(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies, N each, of ``softmax(logits / temperature)``. Entropies have no
    gradient."""
    found: tuple[Tensor, Tensor] = _Scores.apply(logits_NV, targets_N, 1.0 / temperature)
    return found
