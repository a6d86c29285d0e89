"""How vLLM is started: limits and placement from the settings, turned into vLLM's own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from tailrace.engines.contract import Unsupported

LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probs of the distribution that tokens are sampled from, after temperature and truncation."""
WORKER_EXTENSION = "tailrace.engines.vllm.worker_extension.WorkerExtension"
_SMALL_PART = 0.01
_CPU_BLOCK_TOKENS = 32
"""Smallest block of the KV cache that vLLM's attention on CPUs takes. Small blocks share more of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    max_running: int
    """Most sequences generated at the same time."""
    max_length: int
    """Most tokens of one sequence, prompt and response together."""
    kv_tokens: int | None = None
    """Size of the KV cache in tokens; default: on a GPU what ``gpu_memory_utilization`` leaves, on a CPU room for
    ``max_running / 2`` sequences of ``max_length``."""
    prefill_chunk: int = 512
    """Most prompt tokens computed in one step."""
    tensor_parallel_size: int = 1
    """Number of devices that hold the model together."""
    gpu_memory_utilization: float = 0.9
    """Part of a GPU's memory that vLLM may use, weights included."""
    enforce_eager: bool = True
    """Run without compilation and CUDA graphs: vLLM starts sooner and generates more slowly."""
    may_release: bool = False
    """Whether the memory is released while training runs."""
    max_adapters: int = 0
    """Most LoRA adapters at the same time. Without any, vLLM leaves out the code for them, which costs time."""
    max_lora_rank: int = 64
    """Largest rank of a LoRA adapter."""
    routing: Literal["auto", "always", "never"] = "never"
    """Whether to return the experts that a mixture chose for each generated token. ``auto``: if possible."""


def vllm_config(
    checkpoint: Path, options: VllmOptions, *, device: torch.device, dtype: torch.dtype, seed: int
) -> VllmConfig:
    is_gpu = device.type == "cuda"
    if current_platform.is_cpu() == is_gpu:
        where = "CPU" if is_gpu else "GPU"
        raise Unsupported(
            f"the vLLM installed here computes on the {where}, but model.device is '{device.type}':"
            " change model.device or install the other vLLM (docs/vllm.md)"
        )
    arguments = EngineArgs(
        model=str(checkpoint),
        skip_tokenizer_init=True,
        generation_config="vllm",  # so that no sampling parameter comes from the checkpoint
        dtype=str(dtype).removeprefix("torch."),
        seed=seed % 2**32,
        max_model_len=options.max_length,
        max_num_seqs=options.max_running,
        max_num_batched_tokens=max(options.prefill_chunk, options.max_running),
        enable_prefix_caching=True,
        logprobs_mode=LOGPROBS_MODE,
        enforce_eager=options.enforce_eager,
        tensor_parallel_size=options.tensor_parallel_size,
        gpu_memory_utilization=options.gpu_memory_utilization,
        enable_sleep_mode=options.may_release and is_gpu,
        worker_extension_cls=WORKER_EXTENSION,
        enable_lora=options.max_adapters > 0,
        # On CPUs vLLM computes requests without adapter with the adapter in the last place, so that one stays empty.
        max_loras=max(options.max_adapters, 1) if is_gpu else options.max_adapters + 1,
        max_lora_rank=options.max_lora_rank,
        block_size=None if is_gpu else _CPU_BLOCK_TOKENS,
        # On CPUs vLLM cannot do it, and the engine reads the experts in vLLM's worker.
        enable_return_routed_experts=options.routing != "never" and is_gpu,
    )
    config = arguments.create_engine_config()
    kv_tokens = options.kv_tokens
    if kv_tokens is None and not is_gpu:
        kv_tokens = max(options.max_length, options.max_running * options.max_length // 2)
    if kv_tokens is not None:
        config.cache_config.kv_cache_memory_bytes = _kv_bytes(config, kv_tokens)
        # vLLM refuses to start if less than this part of the memory is free, although it takes only what it was given.
        config.cache_config.gpu_memory_utilization = _SMALL_PART
    return config


def _kv_bytes(config: VllmConfig, kv_tokens: int) -> int:
    """Bytes of a KV cache of this many tokens, on one device. vLLM keeps one more block for padding."""
    model, parallel = config.model_config, config.parallel_config
    layers = model.get_num_layers(parallel)
    row = 2 * model.get_num_kv_heads(parallel) * model.get_head_size() * model.dtype.itemsize
    block = config.cache_config.block_size
    num_blocks = -(-kv_tokens // block) + 1
    return int(num_blocks * block * layers * row)
