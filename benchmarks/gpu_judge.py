"""Seconds per GRPO step with a judge on the GPU of rollout: with MPS, by time-slicing, and without a judge.

    python benchmarks/gpu_judge.py TOKENIZER_DIR --json benchmarks/results/gpu_judge_h200.json
    python benchmarks/gpu_judge.py TOKENIZER_DIR --device cpu --actor tiny --runs none tiny/all:auto --steps 4

Actor and judges have the shapes of Qwen2.5 models, the vocabulary of the tokenizer and random weights. So the lengths
of responses are forced: those of SmolLM2-135M (``scenarios/smollm2_135m_lengths.json``), at most 1,024 tokens. 16
prompts x 8 responses, ``sync``, colocated: rollout and training take turns, and the judge scores responses while
rollout goes on. A judge may take the memory of half of its layers (``JUDGE/half``), or all (``JUDGE/all``). A run is
JUDGE/PART:MPS (``schedule.mps``: auto or never), or ``none``. Means leave out the first two steps.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_runs import change, means, plan, train
from gpu_steps import WARM_UP, rows, seconds_per_step
from judge_offload import SHAPES
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

HERE = Path(__file__).resolve().parent
LENGTHS = HERE.parent / "scenarios" / "smollm2_135m_lengths.json"
PARTS = (
    "timing_s/gen", "timing_s/reward_exposed", "timing_s/reward_hidden", "timing_s/update_actor",
    "timing_s/update_weights", "response_length/mean", "response_length/max", "perf/max_memory_allocated_gb",
    "scoring/judge/load", "scoring/judge/run_s", "scoring/judge/queued_mean_s", "scoring/judge/tokens_per_s",
    "reward/num_timeout", "reward/num_crash", "reward/num_error",
)  # fmt: skip
SPARE_GB = 3.0
"""What a judge may take beside weights: states and working memory of its passes."""


def make_model(shape: str, tokenizer_dir: Path, folder: Path, device: str) -> Path:
    """A model with random weights on disk, once."""
    target = folder / shape
    if target.exists():
        return target
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    _, hidden, inner, layers, heads, kv_heads, _ = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


def weights_gb(shape: str, tokenizer_dir: Path, *, share: float) -> float:
    """GiB of a model of which this share of the layers is on the device, two buffers included."""
    _, hidden, inner, layers, heads, kv_heads, _ = SHAPES[shape]
    kv = hidden // heads * kv_heads
    layer = 2 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)
    outside = 2 * hidden * len(AutoTokenizer.from_pretrained(tokenizer_dir))
    return (outside + layer * (share * layers + (2 if share < 1 else 0))) / 2**30


def recipe(options: argparse.Namespace, run: str, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seed": 0,
        "model": {
            "path": str(folder / options.actor),
            "device": options.device,
            "dtype": "bfloat16" if options.device == "cuda" else "float32",
        },
        "data": {"train": str(folder / "prompts.jsonl")},
        "reward": {"functions": [f"{HERE / 'trl_reward.py'}:plain_words"]},
        "rollout": {
            "n_samples_per_prompt": options.group_size,
            "max_response_length": options.max_response_length,
            "forced_lengths": str(LENGTHS),
            "max_running": options.prompts * options.group_size,
        },
        "trainer": {"learning_rate": 1e-6},
        "schedule": {"preset": "sync", "rollout_batch_size": options.prompts, "max_steps": options.steps},
    }
    if run != "none":
        which, mps = run.split(":")
        judge, part = which.split("/")
        found["reward"]["functions"].append({"function": "judge", "weight": 0.5})
        found["reward"]["judge"] = {"model": str(folder / judge), "prompt": "{prompt_text}\n{response}\nIs it good?"}
        if part == "half" and options.device == "cuda":
            found["reward"]["judge"]["memory_gb"] = round(weights_gb(judge, options.tokenizer, share=0.5) + SPARE_GB, 2)
        found["schedule"]["mps"] = mps
    change(found, options.set)
    return found


def measure(options: argparse.Namespace, run: str, models: Path) -> dict[str, Any]:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in models.iterdir():
            (folder / model.name).symlink_to(model)
        (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(options.tokenizer)))
        settings = recipe(options, run, folder)
        planned = plan(settings, folder) if options.plan else []
        done = train(settings, folder)
        found = [row for row in done.metrics() if "timing_s/step" in row]
    return {
        "s_per_step": seconds_per_step([row["timing_s/since_start"] for row in found]),
        "mean_of": means(found[WARM_UP:], PARTS),
        "said": done.said,
        "planned": planned,
        "peak_used_gib": done.peak_used_gib,
        "wall_s": round(time.monotonic() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="Hugging Face directory of the tokenizer, such as SmolLM2's")
    parser.add_argument("--actor", default="1.5B", choices=SHAPES)
    parser.add_argument(
        "--runs", nargs="+", default=["none", "7B/half:auto", "7B/half:never", "1.5B/all:auto", "1.5B/all:never"]
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_response_length", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plan", action=argparse.BooleanOptionalAction, default=True, help="keep what a dry run says")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="further settings of the runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shapes = {options.actor, *(run.split("/")[0] for run in options.runs if run != "none")}
    result: dict[str, Any] = {
        "settings": {name: str(value) for name, value in vars(options).items() if name not in ("json", "tokenizer")},
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "torch": torch.__version__,
        "runs": {},
    }
    with tempfile.TemporaryDirectory() as models:
        for shape in sorted(shapes):
            make_model(shape, options.tokenizer, Path(models), options.device)
        if options.device == "cuda":
            torch.cuda.empty_cache()
        for run in options.runs:
            try:
                result["runs"][run] = measure(options, run, Path(models))
            except RuntimeError as error:
                result["runs"][run] = {"failed": str(error)}
            print(f"{run}: {json.dumps(result['runs'][run], indent=1)}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
