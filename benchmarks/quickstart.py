"""Does the quickstart teach? Runs it, then measures the model before and after on 2,000 held-out prompts.

    python benchmarks/quickstart.py --json benchmarks/results/quickstart.json

Accuracy is exact match, sampled at temperature 1 and greedy, by the native engine. The run is a real `tailrace train
quickstart` in a temporary directory; its wall seconds include the start of all processes.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from tailrace.config.data_settings import DataSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.data.models import resolve_model
from tailrace.data.prompts import PromptSet
from tailrace.engines.contract import Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits
from tailrace.rewards.verifiers import exact_match

BUDGET = 384


def measure(model: Path, temperature: float) -> dict[str, float]:
    """Accuracy, share of answers that parse, and lengths on all held-out prompts."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = PromptSet.load("heldout", "builtin:arith-heldout", tokenizer, DataSettings())
    limits = EngineLimits(max_running=128, max_length=DataSettings().max_prompt_length + BUDGET)
    engine = NativeEngine(model, seed=1, device=torch.device("cpu"), dtype=torch.float32, limits=limits)
    sampling = Sampling(temperature=temperature, stop_token_ids=(tokenizer.eos_token_id,))
    ids = {ResponseId(GroupId("heldout", 0, index), 0): prompts[index] for index in prompts.indices}
    empty = np.empty(0, np.int32)
    engine.submit(
        [
            Request(response_id=i, prompt=p.tokens, prefix=empty, budget=BUDGET, sampling=sampling)
            for i, p in ids.items()
        ]
    )
    texts: dict[ResponseId, str] = {}
    lengths: list[int] = []
    while len(texts) < len(ids):
        for output in engine.step():
            tokens = output.segment.tokens
            texts[output.segment.response_id] = tokenizer.decode(tokens, skip_special_tokens=True)
            lengths.append(len(tokens))
    answers = {i: str(prompt.row["answer"]) for i, prompt in ids.items()}
    lengths.sort()
    return {
        "accuracy": float(np.mean([exact_match(text, answers[i]) for i, text in texts.items()])),
        "parses": float(np.mean([_parses(text) for text in texts.values()])),
        "length_p50": lengths[len(lengths) // 2],
        "length_p95": lengths[int(0.95 * len(lengths))],
        "length_max": lengths[-1],
        "num_prompts": len(ids),
    }


def _parses(text: str) -> bool:
    return text.rpartition("####")[1] != "" and text.rpartition("####")[2].strip().lstrip("-").isdigit()


def run_quickstart(output: Path, seed: int) -> float:
    start = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tailrace",
        "train",
        "quickstart",
        "--output_dir",
        str(output),
        "--seed",
        str(seed),
    ]
    subprocess.run(command, check=True)
    return time.monotonic() - start


def both(model: Path) -> dict[str, Any]:
    return {"sampled": measure(model, 1.0), "greedy": measure(model, 0.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        wall_s = run_quickstart(output, options.seed)
        before, after = both(resolve_model("tiny-arith")), both(output / "checkpoints" / "latest")
    result = {
        "rise_sampled": after["sampled"]["accuracy"] - before["sampled"]["accuracy"],
        "rise_greedy": after["greedy"]["accuracy"] - before["greedy"]["accuracy"],
        "train_wall_s": wall_s,
        "before": before,
        "after": after,
        "seed": options.seed,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "versions": {name: version(name) for name in ("tailrace", "torch", "transformers")},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
