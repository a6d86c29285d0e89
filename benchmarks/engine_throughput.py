"""Decode throughput of the native engine by batch size, on a random model of a known shape.

    python benchmarks/engine_throughput.py --shape 135M --json benchmarks/results/engine_h200.json

Every response is forced to the same length, so the figure is tokens per second of a full batch, from submit to the
finished outputs with their log-probs, prefill included. Of two runs the faster counts. What happens once (compiling
kernels, capturing graphs) is in a run before and is counted apart.
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

from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.data.random_models import SHAPES, save_random_model
from tailrace.engines.contract import Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import Decoding, EngineLimits

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


def measure(engine: NativeEngine, batch: int, length: int) -> dict[str, float]:
    first = run(engine, batch, min(32, length), 0)
    seconds = min(run(engine, batch, length, number) for number in (1, 2))
    return {
        "tokens_per_s": batch * length / seconds,
        "ms_per_step": 1000 * seconds / length,
        "first_run_of_32_tokens_s": first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="135M")
    parser.add_argument("--decoding", choices=[each.value for each in Decoding], default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128, 256, 512])
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dtype, most = getattr(torch, options.dtype), max(options.batches)
    max_length = PROMPT_TOKENS + options.length
    limits = EngineLimits(
        max_running=most, max_length=max_length, kv_tokens=most * (max_length + 32), prefill_chunk=8192
    )
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(options.shape, Path(folder), dtype=dtype, device=options.device)
        engine = NativeEngine(
            Path(folder),
            seed=0,
            limits=limits,
            device=options.device,
            dtype=dtype,
            decoding=Decoding(options.decoding),
        )
        for batch in options.batches:
            figures[batch] = measure(engine, batch, options.length)
            print(f"{options.shape} {options.decoding} batch {batch}: {figures[batch]}", flush=True)
    result = {
        "shape": options.shape,
        "decoding": options.decoding,
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
