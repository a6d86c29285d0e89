"""What it takes to park an instance and to wake it, beside starting a new one. Needs a GPU; vLLM only for its rows.

    python benchmarks/gpu_parking.py --json benchmarks/results/gpu_parking_h200.json
    python benchmarks/gpu_parking.py --device cpu --engines native --shapes tiny

When the parallel size changes, the instances of the old size leave their devices: they end, or they are parked, with
their processes and without their memory. For each engine and model shape (random weights, bfloat16), in a process of
its own:

start_s    from the start of the process to an engine that has generated
release_s  giving back the memory, and freed_gib, how much of the device's memory is free again
wake_s     taking the memory again and loading weights from page-locked host memory, ``pull_s`` of it loading; the
           first of three, and the median
is_equal   greedy tokens and log-probs before and after are the same bits

One process holds one engine, on one GPU: two parallel sizes beside each other need more GPUs (NCCL).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
NUM_PROMPTS, PROMPT, LENGTH, WAKES = 16, 32, 64, 3


def save_model(shape: str, folder: Path, device: str) -> None:
    import torch

    from tailrace.data.random_models import save_random_model

    if shape != "tiny":
        save_random_model(shape, folder, dtype=torch.bfloat16, device=device)
        return
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**TINY, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def open_engine(options: argparse.Namespace, checkpoint: Path) -> Any:
    from tailrace.config.model_settings import ModelSettings
    from tailrace.config.rollout_settings import RolloutSettings
    from tailrace.workers.messages import RolloutInit
    from tailrace.workers.rollout_worker import make_engine

    rollout = RolloutSettings(
        engine=options.engine, max_running=64, kv_tokens=64 * 512, prefill_chunk=4096, max_response_length=LENGTH
    )
    model = ModelSettings(path=str(checkpoint), device=options.device, dtype="bfloat16")
    return make_engine(
        RolloutInit(checkpoint=checkpoint, model=model, rollout=rollout, max_length=512, seed=0, may_release=True)
    )


def generate(engine: Any, vocab_size: int) -> list[tuple[list[int], list[float]]]:
    """Greedy tokens and log-probs of some prompts."""
    import numpy as np

    from tailrace.core.ids import GroupId, ResponseId
    from tailrace.engines.contract import Request, Sampling

    rng, nothing = np.random.default_rng(0), np.zeros(0, np.int32)
    engine.submit(
        [
            Request(
                response_id=ResponseId(GroupId("train", 0, number), 0),
                prompt=rng.integers(0, vocab_size, PROMPT, dtype=np.int32),
                prefix=nothing,
                budget=LENGTH,
                sampling=Sampling(temperature=0.0),
                forced_length=LENGTH,
            )
            for number in range(NUM_PROMPTS)
        ]
    )
    found: dict[Any, tuple[list[int], list[float]]] = {}
    while len(found) < NUM_PROMPTS:
        for output in engine.step():
            segment = output.segment
            assert output.finish is not None
            found[segment.response_id] = (segment.tokens.tolist(), segment.logprobs.tolist())
    return [found[name] for name in sorted(found)]


def load_weights(checkpoint: Path, is_cuda: bool) -> dict[str, Any]:
    from safetensors.torch import load_file

    tensors = {name: value for file in checkpoint.glob("*.safetensors") for name, value in load_file(file).items()}
    return {name: value.pin_memory() for name, value in tensors.items()} if is_cuda else tensors


def parts(engine: Any, weights: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            piece.parameter: weights[piece.parameter][tuple(slice(start, stop) for start, stop in piece.box)]
            for piece in holding.pieces
        }
        for holding in engine.layout()
    ]


def used_gib(device: str) -> float:
    """Memory of the device that somebody holds."""
    import torch

    if device != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def measure(options: argparse.Namespace, checkpoint: Path) -> dict[str, Any]:
    """In a process of its own."""
    from tailrace.core.ids import Version
    from tailrace.store.model_config import vocabulary_size

    engine, vocab_size = open_engine(options, checkpoint), vocabulary_size(checkpoint)
    before = generate(engine, vocab_size)
    start_s = time.time() - options.began
    weights = load_weights(checkpoint, options.device == "cuda")
    resident, releases, wakes, pulls, held = used_gib(options.device), [], [], [], 0.0
    for number in range(WAKES):
        at = time.perf_counter()
        engine.release()
        synchronize(options.device)
        releases.append(time.perf_counter() - at)
        held = used_gib(options.device)
        at = time.perf_counter()
        engine.restore()
        synchronize(options.device)
        pulled_at = time.perf_counter()
        engine.pull(parts(engine, weights), Version(number + 1))
        synchronize(options.device)
        wakes.append(time.perf_counter() - at)
        pulls.append(time.perf_counter() - pulled_at)
    after = generate(engine, vocab_size)
    return {
        "engine": options.engine,
        "shape": options.shape,
        "start_s": round(start_s, 2),
        "release_s": round(median(releases), 3),
        "freed_gib": round(resident - held, 2),
        "wake_first_s": round(wakes[0], 3),
        "wake_s": round(median(wakes), 3),
        "pull_s": round(median(pulls), 3),
        "is_equal": after == before,
    }


def run_child(options: argparse.Namespace, engine: str, shape: str, checkpoint: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(checkpoint), "--engine", engine, "--shape", shape]
    command += ["--device", options.device, "--began", str(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=options.limit_s, check=False)
    if done.returncode:
        return {"engine": engine, "shape": shape, "error": done.stderr.strip().splitlines()[-1:]}
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def describe(device: str) -> dict[str, str]:
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=["vllm", "native"])
    parser.add_argument("--shapes", nargs="+", default=["135M", "1.5B"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--limit-s", type=float, default=200.0, help="most seconds of one process")
    parser.add_argument("--json", type=Path)
    for name in ("--child", "--engine", "--shape", "--began"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        options.began = float(options.began)
        print(json.dumps(measure(options, Path(options.child))))
        sys.stdout.flush()
        os._exit(0)  # an engine's threads do not keep the process
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shapes:
            checkpoint = Path(folder) / shape
            save_model(shape, checkpoint, options.device)
            for engine in options.engines:
                rows.append(run_child(options, engine, shape, checkpoint))
                print(json.dumps(rows[-1]), flush=True)
    if options.json is not None:
        found = {"setting": describe(options.device), "rows": rows}
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
