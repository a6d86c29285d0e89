"""A judge whose layers come from host memory: memory, seconds per pass, and whether scores keep their bits.

    python benchmarks/judge_offload.py --json benchmarks/results/judge_offload_h200.json
    python benchmarks/judge_offload.py --device cpu --tiny

Models have the shapes of Qwen2.5-1.5B and Qwen2.5-7B and random weights, on a GPU in bfloat16. A pass scores one
sequence of the given length by the log-probs of two answer words behind its last token; ``16 x 1024`` is a pass over
sixteen. Modes:

all                every layer is resident
half, none         half of the layers, or none; the next layer is copied while one computes (``offload/``)
half, none serial  each layer is copied when it is needed, from the same page-locked memory

Seconds are the median of some passes after one that is not counted. Peak memory is what torch allocated at most in
those passes, weights included. ``predicted_s`` is the arithmetic of ``sizing/resident_layers.py`` from the profile.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, Qwen2Config

from tailrace.judge.model import JudgeModel
from tailrace.judge.profiling import measure_profile, synchronize
from tailrace.judge.questions import Question
from tailrace.sizing.resident_layers import OffloadProfile, predicted_seconds

SHAPES = {
    "1.5B": (151936, 1536, 8960, 28, 12, 2, True),
    "7B": (152064, 3584, 18944, 28, 28, 4, False),
    "tiny": (512, 64, 128, 6, 4, 2, True),
}
"""Vocabulary, hidden size, inner size, layers, heads, key/value heads, tied embeddings."""
WORDS = np.array([10, 11], np.int32)
MANY = 16


class Mode(NamedTuple):
    name: str
    num_resident: int
    is_overlapped: bool = True


def modes(num_layers: int) -> list[Mode]:
    half = num_layers // 2
    return [
        Mode("all", num_layers),
        Mode("half", half),
        Mode("half serial", half, False),
        Mode("none", 0),
        Mode("none serial", 0, False),
    ]


def random_judge(shape: str, device: torch.device, max_length: int) -> JudgeModel:
    vocabulary, hidden, inner, layers, heads, kv_heads, is_tied = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=is_tied,
        max_position_embeddings=max(32768, max_length),
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return JudgeModel(model, device)


def question(length: int, vocab_size: int, seed: int = 0) -> Question:
    tokens = np.random.default_rng(seed).integers(0, vocab_size, length).astype(np.int32)
    return Question.about_the_end(tokens, WORDS)


def measure(
    judge: JudgeModel, asked: list[Question], mode: Mode, repeats: int
) -> tuple[dict[str, Any], list[NDArray[np.float32]]]:
    device = judge.device
    judge.offload.keep(mode.num_resident, is_overlapped=mode.is_overlapped)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    found = judge.logprobs(asked)
    taken = []
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        judge.logprobs(asked)
        synchronize(device)
        taken.append(time.perf_counter() - start)
    row: dict[str, Any] = {"mode": mode.name, "s": round(median(taken), 5), "all_s": [round(each, 5) for each in taken]}
    if device.type == "cuda":
        row["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    return row, found


def compare(judge: JudgeModel, lengths: list[int], profile: OffloadProfile, repeats: int) -> dict[str, Any]:
    """All modes over sequences of these lengths: seconds, memory, and whether all say the same."""
    asked = [question(length, judge.vocab_size, seed) for seed, length in enumerate(lengths)]
    rows, answers = [], []
    for mode in modes(judge.offload.num_layers):
        row, found = measure(judge, asked, mode, repeats)
        seconds = predicted_seconds(profile, lengths, mode.num_resident, is_overlapped=mode.is_overlapped)
        rows.append(row | {"predicted_s": round(seconds, 5)})
        answers.append(np.concatenate(found))
        print(f"    {row['mode']:12} {row['s']:8.4f} s  {row.get('peak_bytes', 0) / 2**30:6.2f} GiB", flush=True)
    by_name = {row["mode"]: row for row in rows}
    found = {
        "lengths": lengths,
        "modes": rows,
        "is_bit_equal": all(np.array_equal(answers[0], each) for each in answers[1:]),
        "serial_over_pipelined": {
            name: round(by_name[f"{name} serial"]["s"] / by_name[name]["s"], 3) for name in ("half", "none")
        },
        "pipelined_over_all": {name: round(by_name[name]["s"] / by_name["all"]["s"], 3) for name in ("half", "none")},
    }
    if "peak_bytes" in by_name["all"]:
        everything = by_name["all"]["peak_bytes"]
        found["peak_over_all"] = {name: round(by_name[name]["peak_bytes"] / everything, 3) for name in ("half", "none")}
    return found


def is_independent_of_company(judge: JudgeModel, lengths: list[int]) -> bool:
    """Whether each sequence has the same bits alone and beside the others."""
    asked = [question(length, judge.vocab_size, seed) for seed, length in enumerate(lengths)]
    together = judge.logprobs(asked)
    return all(np.array_equal(judge.logprobs([one])[0], found) for one, found in zip(asked, together, strict=True))


def measure_shape(shape: str, device: torch.device, lengths: list[int], repeats: int) -> dict[str, Any]:
    print(f"{shape}: making a model with random weights", flush=True)
    judge = random_judge(shape, device, max(lengths))
    profile = measure_profile(judge, lengths)
    copy_gb_s = profile.layer_bytes / profile.copy_s / 1e9
    print(f"  a layer has {profile.layer_bytes:,} bytes; copies: {copy_gb_s:.1f} GB/s", flush=True)
    passes = []
    for each in [*([length] for length in lengths), [min(lengths)] * MANY]:
        print(f"  {len(each)} x {each[0]:,} tokens", flush=True)
        passes.append(compare(judge, each, profile, repeats))
    mixed = [max(1, length // 3 + 1) for length in lengths] + [min(lengths)] * 2
    return {
        "num_layers": profile.num_layers,
        "layer_bytes": profile.layer_bytes,
        "outside_bytes": profile.outside_bytes,
        "copy_s": profile.copy_s,
        "copy_gb_per_s": round(copy_gb_s, 2),
        "profile": [
            {"length": each.length, "working_bytes": each.working_bytes, "layer_s": each.layer_s}
            for each in profile.points
        ],
        "passes": passes,
        "is_independent_of_company": is_independent_of_company(judge, mixed),
    }


def summary(shapes: dict[str, Any]) -> dict[str, Any]:
    passes = [one for shape in shapes.values() for one in shape["passes"]]
    ratios = [one["peak_over_all"]["half"] for one in passes if "peak_over_all" in one]
    return {
        "best_serial_over_pipelined": max(max(one["serial_over_pipelined"].values()) for one in passes),
        "best_serial_over_pipelined_half": max(one["serial_over_pipelined"]["half"] for one in passes),
        "peak_half_over_all": {"least": min(ratios), "most": max(ratios)} if ratios else None,
        "all_bit_equal": all(one["is_bit_equal"] for one in passes),
        "all_independent_of_company": all(shape["is_independent_of_company"] for shape in shapes.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["1.5B", "7B"], choices=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096, 16384, 32768])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape and short sequences, to try the script")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.tiny:
        options.shapes, options.lengths, options.repeats = ["tiny"], [16, 48, 96], 2
    device = torch.device(options.device)
    shapes: dict[str, Any] = {}
    for shape in options.shapes:
        shapes[shape] = measure_shape(shape, device, options.lengths, options.repeats)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    report = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "repeats": options.repeats,
        "summary": summary(shapes),
        "shapes": shapes,
    }
    print(json.dumps(report["summary"], indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
