"""What the vLLM engine can do. Importing this file imports neither torch nor vllm."""

from __future__ import annotations

from dataclasses import replace

from tailrace.engines.contract import Capabilities

ON_CPU = Capabilities(
    name="vllm",
    # vLLM draws random numbers for the whole batch, so other requests change what is sampled.
    has_keyed_randomness=False,
    has_exact_interrupt=True,
    streams_progress=True,
    has_deterministic_mode=False,
    # vLLM's sleep mode needs an allocator that only GPUs have.
    releases_memory=False,
    uses_weights=True,
    has_kv_cache=True,
    serves_adapters=True,
    max_parallel_size=8,
    shares_prompts=True,
    returns_routing=True,
)
ON_GPU = replace(ON_CPU, releases_memory=True)


def capabilities(*, is_gpu: bool, may_release: bool, is_float32: bool, num_ranks: int = 1) -> Capabilities:
    """What an engine can do that was started this way."""
    found = ON_GPU if is_gpu and may_release else ON_CPU
    # vLLM's kernels for adapters on GPUs take only half precision.
    return replace(found, serves_adapters=not (is_gpu and is_float32), ranks_fetch=num_ranks > 1)
