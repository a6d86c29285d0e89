"""What a training pass keeps for its backward pass, in bytes per token.

The counts are those of Transformers' Llama, Qwen2, Qwen3 and Qwen3-MoE layers as ``trainer/model/network.py`` runs
them, with fp32 weights. ``tests/sizing/test_activations.py`` compares them with what autograd really keeps.

In bfloat16 (autocast) the residual stream and the norms stay in fp32. Each linear layer gets a bfloat16 copy of its
input of its own, because autocast keeps copies of weights only. Compiled layers keep less.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.sizing.model_shape import ModelShape

_FP32 = 4
_BF16 = 2
LOGITS_PER_CHUNK = 2**28
"""Most logits that exist at the same time (``trainer/model/network.py``)."""
_PLAIN_LOGIT = 16
"""Bytes in plain torch: fp32 logits, their log-softmax, and two temporaries of the entropy."""
_BACKWARD_SHARE = 0.5
"""Gradients inside the layer that the backward pass is at, compared with what the layer keeps: a rough value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes per token of a micro-batch."""

    layer: int
    """Kept by one layer until its backward pass."""
    layer_input: int
    """Kept by one layer whose activations are recomputed."""
    outside: int
    """Kept outside the layers: last norm, what the head reads, rotary tables."""

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        *,
        is_autocast: bool,
        is_frozen: bool = False,
        is_compiled: bool = False,
    ) -> Activations:
        """``is_frozen``: the weights are not trained, as with an adapter. ``is_compiled``: with ``torch_compile``."""
        hidden, item = shape.hidden_size, _BF16 if is_autocast else _FP32
        # A norm keeps its input and, for the gradient of its weight, the normed values.
        norm = _FP32 * hidden * (1 if is_frozen else 2)
        # q, output, k, v, row sums
        attention = item * 2 * (shape.query_size + shape.kv_size) + _FP32 * shape.num_heads
        output = item * shape.query_size  # what the output projection reads
        # The code of a mixture's layers is compiled in pieces, around its routers: it counts as not compiled.
        is_whole = is_compiled and not shape.experts_per_token
        rest = _compiled(shape, item) if is_whole else 2 * norm + _plain(shape, item)
        return cls(
            layer=attention + output + rest,
            layer_input=_FP32 * hidden,
            outside=norm + item * hidden + 2 * _FP32 * shape.head_dim,
        )


def _plain(shape: ModelShape, item: int) -> int:
    """What a layer keeps beside attention and its two norms."""
    hidden, is_autocast = shape.hidden_size, item == _BF16
    inputs_of_linears = 5 * _BF16 * hidden if is_autocast else 2 * _FP32 * hidden
    gated = 4 * item * shape.mlp_width  # gate, silu(gate), up, and their product
    # What each expert reads and gives, in both precisions.
    gated += shape.experts_per_token * hidden * 2 * (_FP32 + (_BF16 if is_autocast else 0))
    normed_heads = (_FP32 + item) * (shape.query_size + shape.kv_size) if shape.has_qk_norm else 0
    return inputs_of_linears + gated + normed_heads


def _compiled(shape: ModelShape, item: int) -> int:
    """What a compiled layer keeps beside attention, as found by experiment: torch chooses what to compute again."""
    num_inputs = 1 if item == _BF16 else 2  # of linear layers
    norms = 2 * _FP32 * (shape.hidden_size + 1)  # the input, and one number for each token
    gated = 3 * item * shape.mlp_width  # gate, up, and their product
    normed_heads = item * (shape.query_size + shape.kv_size) + _FP32 * (shape.num_heads + shape.num_kv_heads)
    return norms + num_inputs * item * shape.hidden_size + gated + (normed_heads if shape.has_qk_norm else 0)


def micro_batch_bytes(
    kept: Activations, shape: ModelShape, num_tokens: int, *, recomputes: bool, for_logits: int
) -> int:
    """Bytes of a micro-batch at the worst moment: when its logits exist, or in the backward pass of a layer.

    ``for_logits``: what ``logits_bytes`` says.
    """
    per_layer = kept.layer_input if recomputes else kept.layer
    stays = num_tokens * (shape.num_layers * per_layer + kept.outside)
    in_backward = num_tokens * kept.layer * (_BACKWARD_SHARE + (1 if recomputes else 0))
    return stays + max(for_logits, int(in_backward))


def logits_bytes(shape: ModelShape, num_tokens: int, *, is_autocast: bool, is_fused: bool) -> int:
    """``is_fused``: a kernel reads the logits (``trainer/model/fused_scores.py``), so that there are only they and
    their gradient."""
    fused = 2 * (_BF16 if is_autocast else _FP32)
    return (fused if is_fused else _PLAIN_LOGIT) * min(num_tokens * shape.vocab_size, LOGITS_PER_CHUNK)
