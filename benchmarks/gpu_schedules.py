"""All schedules on one GPU, with response lengths drawn from a declared long-tailed distribution.

    python benchmarks/gpu_schedules.py MODEL --json benchmarks/results/gpu_schedules_h200.json --journals DIR
    python benchmarks/gpu_schedules.py 1.5B --presets sync stage-overlap --set rollout.num_instances=4 --journals DIR
    python benchmarks/gpu_schedules.py 1.5B --presets tail-batching tail-batching,stream=always rollpacker ...

A run is PRESET[,SETTING=VALUE...] with settings of the schedule, such as ``tail-batching,stream=always``.
MODEL is the shape of a random model (135M, 1.5B) or a Hugging Face directory. Responses are forced to lengths that are
the same under every schedule: log-normal, median 130 tokens, spread of ln(length) 0.8 between prompts and 0.6 within
one, at most 4,096. That is RollPacker's workload with all lengths at a quarter: P75 is 255 (theirs 755 to 1,100), and
the limit is 31 times the median (theirs 25 to 32). These are figures of the distribution; result files have those of
the lengths that were drawn (median 128, P75 251). 64 prompts x 8 responses are trained in each step.

Seconds per step are the mean of the steps after the second, ten of them: two whole periods of tail batching. Then the
simulator is fitted to `sync` and `one-step` and predicts the others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import torch
from gpu_runs import Run, change, train
from streamed_figures import streaming
from transformers import PreTrainedTokenizerFast

from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.data.random_models import SHAPES, save_random_model
from tailrace.observe.journal import journal_file
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim import calibrate
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.lengths import DrawnLengths

HERE = Path(__file__).resolve().parent
PRESETS = ("sync", "one-step", "tail-batching", "active-partial", "async-cap", "staleflow")
FITTED = ("sync", "one-step")
WARM_UP = 2
LENGTHS = DrawnLengths(seed=0, median=130, between=0.8, within=0.6)
NUM_PROMPTS, NUM_DRAWS = 4096, 16


def draw_lengths(cap: int, scale: float) -> list[list[int]]:
    """One row per prompt; the further entries of a row are for speculative responses and second attempts."""
    names = [[ResponseId(GroupId("train", 0, n), member) for member in range(NUM_DRAWS)] for n in range(NUM_PROMPTS)]
    return [[max(1, min(cap, round(scale * LENGTHS.draw(name, 0)))) for name in row] for row in names]


def describe(lengths: list[list[int]], group_size: int) -> dict[str, float]:
    flat = sorted(length for row in lengths for length in row[:group_size])
    _, p50, p75 = quantiles(flat, n=4)
    return {"mean": round(fmean(flat), 1), "p50": p50, "p75": p75, "longest_over_median": round(flat[-1] / p50, 1)}


def recipe(options: argparse.Namespace, preset: str, model: Path, folder: Path) -> dict[str, Any]:
    longest = 64 + options.max_response_length
    name, *changes = preset.split(",")
    found: dict[str, Any] = {
        "seed": 0,
        "model": {"path": str(model), "device": options.device, "dtype": options.dtype},
        "data": {"train": str(folder / "prompts.jsonl"), "shuffle": False, "max_prompt_length": 64},
        "reward": {"functions": [f"{HERE / 'drawn_reward.py'}:drawn"]},
        "rollout": {
            "n_samples_per_prompt": options.group_size,
            "max_response_length": options.max_response_length,
            "forced_lengths": str(folder / "lengths.json"),
        }
        | ({"kv_tokens": options.prompts * options.group_size * longest} if options.device == "cpu" else {}),
        "trainer": {"learning_rate": 1e-6},
        "schedule": {"preset": name, "rollout_batch_size": options.prompts, "max_steps": options.steps},
    }
    found["schedule"] |= dict(each.split("=", 1) for each in changes)
    change(found, options.set)
    return found


def write_inputs(folder: Path, options: argparse.Namespace) -> list[list[int]]:
    lengths = draw_lengths(options.max_response_length, options.scale)
    (folder / "lengths.json").write_text(json.dumps(lengths))
    words = [{"prompt": " ".join(str((number * 7 + k) % 97) for k in range(12))} for number in range(NUM_PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, words)) + "\n")
    return lengths


def save_model(options: argparse.Namespace, folder: Path) -> Path:
    """A random model with a word for each of its tokens, or the directory that was named."""
    if options.model not in SHAPES:
        return Path(options.model)
    from tokenizers import Tokenizer, models, pre_tokenizers

    save_random_model(options.model, folder, dtype=torch.bfloat16, device=options.device)
    if options.device == "cuda":
        torch.cuda.empty_cache()
    vocabulary = {"?": 0, "<end>": 1} | {str(n): n for n in range(2, SHAPES[options.model][0])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="?").save_pretrained(folder)
    return folder


def summary(run: Run) -> dict[str, Any]:
    rows = run.metrics()
    ends = [row["timing_s/since_start"] for row in rows]
    entries = [entry for _, entry in journal_file.read(run.journal)]
    errors = [row["perf/prediction_error"] for row in rows if "perf/prediction_error" in row]
    return {
        "s_per_step": round((ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP), 3),
        "first_steps_s": round(ends[WARM_UP - 1], 1),
        "update_actor_s": round(fmean(row["timing_s/update_actor"] for row in rows[WARM_UP:]), 3),
        "figures": figures_of(entries).to_dict(),
        "streaming": streaming(rows[WARM_UP:], entries),
        "cost_model_error": round(errors[-1], 3) if errors else None,
        "peak_used_gib": run.peak_used_gib,
        "said": run.said,
    }


def predictions(folder: Path, presets: list[str]) -> dict[str, Any]:
    """Wall seconds of each schedule, simulated in a world that is fitted to two of them."""
    journals = {name: read_kept(folder / f"{file_name(name)}.jsonl.gz") for name in presets}
    fitted = [journals[name] for name in FITTED]
    config = json.loads((folder / f"{FITTED[0]}.config.json").read_text())
    machine = MachineFacts.of(config, num_prompts=calibrate.schedule_of(fitted[0]).epoch_size)
    calibration = calibrate.calibrate(fitted, machine)
    found: dict[str, Any] = {"engine_error": round(calibration.engine_error, 3), "schedules": {}}
    for name, journal in journals.items():
        simulated, _ = calibrate.simulate(fitted, calibration, calibrate.schedule_of(journal))
        measured_s, predicted_s = (figures_of(entries).seconds_per_step for entries in (journal, simulated))
        found["schedules"][name] = {
            "measured_s_per_step": round(measured_s, 3),
            "predicted_s_per_step": round(predicted_s, 3),
            "error": round(predicted_s / measured_s - 1, 3),
            "is_fitted": name in FITTED,
        }
    return found


def file_name(run: str) -> str:
    return run.replace(",", "-").replace("=", "-")


def read_kept(path: Path) -> list[Entry]:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        journal.write_bytes(gzip.decompress(path.read_bytes()))
        return [entry for _, entry in journal_file.read(journal)]


def measure(options: argparse.Namespace, result: dict[str, Any], journals: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        model = save_model(options, Path(name))
        for preset in options.presets:
            with tempfile.TemporaryDirectory() as inner:
                folder = Path(inner)
                result["lengths"] = describe(write_inputs(folder, options), options.group_size)
                try:
                    run = train(recipe(options, preset, model, folder), folder)
                except RuntimeError as error:
                    print(f"{preset} failed: {error}", flush=True)
                    continue
                run.keep(journals, file_name(preset))
                result["schedules"][preset] = summary(run)
            print(f"{options.model} {preset}: {result['schedules'][preset]}", flush=True)
            write(options, result)


def write(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"{', '.join(SHAPES)} (random weights) or a Hugging Face directory")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group_size", type=int, default=8)
    parser.add_argument("--max_response_length", type=int, default=4096)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all lengths, to try the script")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="further settings of all runs")
    parser.add_argument("--journals", type=Path, required=True, help="folder to keep the journals in, compressed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "settings": {name: str(value) for name, value in vars(options).items() if name not in ("json", "journals")}
        | {"model": Path(options.model).name},
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "torch": torch.__version__,
        "schedules": {},
    }
    measure(options, result, options.journals)
    done = list(result["schedules"])
    if set(FITTED) <= set(done):
        result["simulated"] = predictions(options.journals, done)
        print(json.dumps(result["simulated"]), flush=True)
        write(options, result)


if __name__ == "__main__":
    main()
