"""Packs weights again that vLLM's reload leaves as they were.

On CPUs, vLLM computes with packed copies of the weights. After a reload two kinds of layers would go on with old or
unpacked weights, without an error. On GPUs both work. This file is imported in vLLM's worker process.
"""

from __future__ import annotations

from torch import nn
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod
from vllm.platforms import current_platform


def pack_again(model: nn.Module) -> None:
    if not current_platform.is_cpu():
        return
    for module in model.modules():
        _pack_tied_head(module)
        _pack_experts(module)


def _pack_tied_head(module: nn.Module) -> None:
    """An output head that shares its weight with the embedding is not in the checkpoint, so the reload skips it."""
    if isinstance(module, ParallelLMHead) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
        module.quant_method.process_weights_after_loading(module)


def _pack_experts(module: nn.Module) -> None:
    """vLLM 0.32 packs the experts of a layer only when it loads them for the first time."""
    if (kernel := getattr(getattr(module, "quant_method", None), "moe_kernel", None)) is not None:
        kernel.fused_experts.process_weights_after_loading(module)
