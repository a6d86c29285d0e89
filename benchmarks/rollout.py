"""Useful tokens per second of the native engine, Transformers ``generate`` and Transformers continuous batching.

    python benchmarks/rollout.py --json FILE [--model tiny-arith|smollm2|DIRECTORY] [--batch 64]

All systems run in this process on the same checkpoint, prompts, group size and number of threads. Each is warmed up,
then they take turns; a figure is the median over ``--runs`` rounds. ``ratio`` is the native engine over the best other
system with natural stops. A second block, ``forced``, gives every response the same length, which takes away what
continuous batching wins on short responses.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

# As in rollout workers: idle threads sleep instead of spinning. Read when torch is loaded, the same for all systems.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from rollout_systems import SYSTEMS, System
from rollout_workloads import Workload, load_workload
from transformers.utils import logging

DEFAULTS = {
    "tiny-arith": {"batch": 64, "num_prompts": 64, "max_new_tokens": 512, "forced_length": 64},
    "smollm2": {"batch": 32, "num_prompts": 16, "max_new_tokens": 64, "forced_length": 16},
}


def main() -> None:
    options = _parse()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.threads:
        torch.set_num_threads(options.threads)
    sizes = DEFAULTS.get(options.model, DEFAULTS["smollm2"])
    batch = options.batch or sizes["batch"]
    natural = load_workload(
        options.model,
        num_prompts=options.num_prompts or sizes["num_prompts"],
        group_size=options.group_size,
        max_new_tokens=options.max_new_tokens or sizes["max_new_tokens"],
    )
    systems: dict[str, System] = {name: build(natural, batch) for name, build in SYSTEMS.items()}
    forced = replace(natural, max_new_tokens=options.forced_length or sizes["forced_length"])
    result: dict[str, Any] = {"benchmark": "rollout", "model": options.model, "batch": batch}
    if not options.forced:
        result |= {"natural": _compare(systems, natural, options.runs, forced=False)}
    result |= {"forced": _compare(systems, forced, options.runs, forced=True)}
    result |= {"ratio": result["forced" if options.forced else "natural"]["ratio"], **_describe()}
    text = json.dumps(result, indent=2)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _compare(systems: dict[str, System], workload: Workload, runs: int, *, forced: bool) -> dict[str, Any]:
    warm_up = replace(workload, prompts=workload.prompts[: max(1, len(workload.prompts) // 4)], max_new_tokens=16)
    for system in systems.values():
        system.run(warm_up, forced=forced)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for number in range(runs):
        for name, system in systems.items():
            torch.manual_seed(number)
            rounds[name].append(_time(system, workload, forced))
            print(f"{'forced' if forced else 'natural'} run {number + 1}: {name} {rounds[name][-1]}", flush=True)
    speeds = {name: statistics.median(run["tokens_per_s"] for run in timed) for name, timed in rounds.items()}
    best_peer = max((name for name in speeds if name != "native"), key=lambda name: speeds[name])
    return {
        "ratio": round(speeds["native"] / speeds[best_peer], 2),
        "best_peer": best_peer,
        "num_prompts": len(workload.prompts),
        "group_size": workload.group_size,
        "max_new_tokens": workload.max_new_tokens,
        "systems": {name: {"tokens_per_s": round(speeds[name], 1), "runs": rounds[name]} for name in systems},
    }


def _time(system: System, workload: Workload, forced: bool) -> dict[str, float]:
    start = time.perf_counter()
    num_tokens = system.run(workload, forced=forced)
    seconds = time.perf_counter() - start
    return {"tokens": num_tokens, "seconds": round(seconds, 3), "tokens_per_s": round(num_tokens / seconds, 1)}


def _describe() -> dict[str, Any]:
    return {
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
        "machine": {
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "dtype": "float32",
        },
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--model", default="tiny-arith", help="tiny-arith, smollm2, or a checkpoint directory")
    parser.add_argument("--batch", type=int, help="most responses in flight (default: 64, smollm2: 32)")
    parser.add_argument("--num-prompts", type=int)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int)
    parser.add_argument("--forced-length", type=int, help="length of every response in the forced block")
    parser.add_argument("--forced", action="store_true", help="only the forced block")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
