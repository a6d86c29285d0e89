"""Decode throughput of the native engine by batch size, on a random model of SmolLM2-135M's shape.

    python benchmarks/engine_throughput.py --device cuda --dtype bfloat16 --json benchmarks/results/engine_h200.json

Every response is forced to the same length, so the figure is tokens per second of a full batch, prefill included.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.engines.contract import Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits

SHAPE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
PROMPT_TOKENS = 64


def run(engine: NativeEngine, batch: int, length: int, round_number: int) -> float:
    """Seconds to generate ``batch`` responses of ``length`` tokens."""
    prompt = np.arange(PROMPT_TOKENS, dtype=np.int32)
    requests = [
        Request(
            trajectory=TrajectoryId(GroupId("bench", round_number, index), 0),
            prompt=prompt + index,
            prefix=prompt[:0],
            budget=length,
            sampling=Sampling(),
            forced_length=length,
        )
        for index in range(batch)
    ]
    _settle(engine)
    start = time.perf_counter()
    engine.submit(requests)
    while engine.stats().num_running + engine.stats().num_waiting:
        engine.step()
    _settle(engine)
    return time.perf_counter() - start


def _settle(engine: NativeEngine) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**SHAPE)).to(getattr(torch, options.dtype)).save_pretrained(folder)
        for batch in options.batches:
            limits = EngineLimits(max_running=batch, max_length=PROMPT_TOKENS + options.length, prefill_chunk=4096)
            engine = NativeEngine(
                Path(folder), seed=0, limits=limits, device=options.device, dtype=getattr(torch, options.dtype)
            )
            run(engine, batch, min(16, options.length), 0)
            seconds = min(run(engine, batch, options.length, number) for number in (1, 2))
            figures[batch] = {
                "tokens_per_s": batch * options.length / seconds,
                "ms_per_step": 1000 * seconds / options.length,
            }
            print(f"batch {batch}: {figures[batch]}", flush=True)
    result = {
        "figures": figures,
        "length": options.length,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.machine(),
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
