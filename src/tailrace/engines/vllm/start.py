"""Starts the vLLM engine from a run's settings. Importing this file does not import vllm."""

from __future__ import annotations

from pathlib import Path

import torch

from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.engines.contract import Engine, Unsupported
from tailrace.engines.stop_strings import DecodeText
from tailrace.engines.vllm.versions import check_version, installed_version, prepare_environment
from tailrace.store.model_config import is_mixture


def start_engine(
    checkpoint: Path,
    *,
    model: ModelSettings,
    rollout: RolloutSettings,
    device: torch.device,
    max_length: int,
    seed: int,
    may_release: bool,
    decode_text: DecodeText,
) -> Engine:
    version, is_gpu = installed_version(), device.type == "cuda"
    check_version(version)
    if device.index:
        raise Unsupported(
            f"the vllm engine uses the first GPU that it sees, but model.device is '{device}': set it to 'cuda' and"
            " choose the GPU with CUDA_VISIBLE_DEVICES"
        )
    prepare_environment(is_gpu=is_gpu)
    # vLLM reads its environment when it is imported.
    from tailrace.engines.vllm.engine import VllmEngine
    from tailrace.engines.vllm.options import LOGPROBS_MODE, VllmOptions

    if rollout.threads is not None:
        torch.set_num_threads(rollout.threads)
    options = VllmOptions(
        max_running=rollout.running_limit,
        max_length=max_length,
        kv_tokens=rollout.kv_tokens,
        prefill_chunk=rollout.prefill_limit,
        tensor_parallel_size=rollout.tensor_parallel_size,
        enforce_eager=not is_gpu,
        may_release=may_release,
        routing=rollout.return_routing if is_mixture(checkpoint) else "never",
    )
    print(f"vLLM {version} on {device}: log-probs are {LOGPROBS_MODE}; {options}", flush=True)  # for the worker's log
    return VllmEngine(
        checkpoint,
        seed=seed,
        options=options,
        device=device,
        dtype=getattr(torch, model.dtype),
        decode_text=decode_text,
    )
