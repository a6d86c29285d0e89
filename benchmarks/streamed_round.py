"""Seconds of a step whose gradients are computed while the round still runs, beside one where they come after it.

    python benchmarks/streamed_round.py --json benchmarks/results/streamed_round.json \\
      --picture docs/images/streamed-round.svg

On a CPU: two instances and two replicas of the trainer, each with one thread, share two cores (`shared`). Lengths are
forced, log-normal, so that a few responses of each round are much longer than the rest, as in a long round of tail
batching. Arms:

* `sync`: training begins when the round has ended,
* `streamed`: complete groups are trained while the round runs (`stage-overlap`),
* `lent`: so they are, and when 40 % of the batch is complete one instance leaves its core to training (`lending`).

Each pair is run in turn, five times. Every arm trains the same tokens; the weights after the first streamed step are
compared with those of `sync`. Seconds per step are the mean of the steps after the second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from round_picture import steps_picture
from safetensors.torch import load_file

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.observe.journal import journal_file
from tailrace.trainer.checkpoints.export import export, find_checkpoint

HERE = Path(__file__).resolve().parent
PROMPTS, RESPONSES, NUM_STEPS, WARM_UP = 16, 8, 6, 2
LONGEST = 880
SHAPE = {"median": 90.0, "spread": 0.9}
"""Of the log-normal distribution of lengths."""
LEND_AT = 0.4
ARMS: dict[str, dict[str, Any]] = {
    "sync": {"schedule.preset": "sync"},
    "streamed": {"schedule.preset": "stage-overlap"},
    "lent": {"schedule.preset": "stage-overlap", "schedule.lending": "fixed", "schedule.lend_at": LEND_AT},
}


def lengths(seed: int) -> list[list[int]]:
    """A row for each prompt of the run."""
    rng, median, spread = random.Random(seed), SHAPE["median"], SHAPE["spread"]
    return [
        [min(LONGEST, max(2, round(median * math.exp(spread * rng.gauss(0, 1))))) for _ in range(RESPONSES)]
        for _ in range(PROMPTS * NUM_STEPS)
    ]


def run(arm: str, seed: int, folder: Path, num_steps: int = NUM_STEPS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"lengths-{seed}.json"
    trace.write_text(json.dumps(lengths(seed)))
    output = folder / f"{arm}-{num_steps}"
    settings = {
        "rollout.forced_lengths": trace,
        "rollout.n_samples_per_prompt": RESPONSES,
        "rollout.max_response_length": LONGEST,
        "rollout.max_running": PROMPTS * RESPONSES,
        "rollout.num_instances": 2,
        "rollout.threads": 1,
        "trainer.num_ranks": 2,
        "trainer.num_replicas": 2,
        "trainer.threads": 1,
        "schedule.rollout_batch_size": PROMPTS,
        "schedule.max_steps": num_steps,
        "reward.functions": json.dumps([f"{HERE / 'drawn_reward.py'}:drawn"]),
        "eval": "[]",
        "eval_interval": "null",
        "save_interval": "null",
        "report": "false",
        "seed": seed,
        **ARMS[arm],
    }
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "tailrace", "train", "quickstart", "--output_dir", str(output), *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return output


def figures(output: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "timing_s/step" in row][WARM_UP:]
    entries = [entry for _, entry in journal_file.read(output / "journal.jsonl")]
    pieces = [command for entry in entries for command in entry.commands if isinstance(command, do.Accumulate)]
    names = {
        "step_s": "timing_s/step",
        "rollout_s": "timing_s/gen",
        "training_s": "timing_s/update_actor",
        "hidden_s": "timing_s/update_hidden",
    }
    return {
        **{name: round(fmean(row[metric] for row in rows), 4) for name, metric in names.items()},
        "tokens_per_step": fmean(row["response_length/mean"] * row["groups/num_samples"] for row in rows),
        "pieces_per_step": len(pieces) / NUM_STEPS,
        "pieces_on_lent": sum(bool(piece.replicas) for piece in pieces),
        "num_lent": sum(isinstance(entry.event, ev.MemoryReleased) for entry in entries),
    }


def scores(output: Path) -> dict[str, float]:
    """The score of each response that was trained. It follows from its text."""
    found: dict[str, float] = {}
    for _, entry in journal_file.read(output / "journal.jsonl"):
        for command in entry.commands:
            if isinstance(command, do.Accumulate):
                found.update(zip(map(str, command.responses), command.scores, strict=True))
    return found


def difference(one: Path, other: Path) -> dict[str, float]:
    """How much the weights of two runs differ at most, and in how many responses the texts do."""
    weights = []
    for output in (one, other):
        if not (output / "exported").exists():
            export(find_checkpoint(output), output / "exported", base=None)
        weights.append(load_file(output / "exported" / "model.safetensors"))
    first, second = scores(one), scores(other)
    return {
        "weights": max(float((weights[0][name] - weights[1][name]).abs().max()) for name in weights[0]),
        "other_texts": sum(second[name] != score for name, score in first.items()),
        "responses": len(first),
    }


def measure(pairs: int, folder: Path) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for pair in range(pairs):
        for arm in ARMS if pair % 2 else reversed(ARMS):
            output = run(arm, pair, folder)
            runs[arm].append(figures(output))
            print(f"pair {pair + 1} of {pairs}, {arm}: {runs[arm][-1]['step_s']:.3f} s per step", flush=True)
            if pair < pairs - 1:
                shutil.rmtree(output)
    ratios = {
        arm: [before["step_s"] / after["step_s"] for before, after in zip(runs["sync"], runs[arm], strict=True)]
        for arm in ("streamed", "lent")
    }
    ratios["lent over streamed"] = [
        before["step_s"] / after["step_s"] for before, after in zip(runs["streamed"], runs["lent"], strict=True)
    ]
    return {
        "machine": {"cores": os.cpu_count(), "cpu": platform.processor() or platform.machine()},
        "batch": {"prompts": PROMPTS, "responses": RESPONSES, **SHAPE, "longest": LONGEST},
        "speedup": {
            arm: {"mean": round(fmean(each), 3), "least": round(min(each), 3), "most": round(max(each), 3)}
            for arm, each in ratios.items()
        },
        "mean": {
            arm: {name: round(fmean(each[name] for each in found), 4) for name in found[0]}
            for arm, found in runs.items()
        },
        "runs": runs,
    }


def compare_weights(folder: Path) -> dict[str, dict[str, float]]:
    """After two steps: the second has begun with weights from a step that was streamed in no arm."""
    outputs = {arm: run(arm, 0, folder, num_steps=2) for arm in ARMS}
    return {arm: difference(outputs["sync"], outputs[arm]) for arm in ("streamed", "lent")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{name} of the lengths, {value} by default")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="where a picture of one step of each arm is drawn")
    options = parser.parse_args()
    SHAPE.update(median=options.median, spread=options.spread)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        found = {"weights": compare_weights(folder), **measure(options.pairs, folder)}
        if options.picture is not None:
            journals = {arm: folder / f"{arm}-{NUM_STEPS}" / "journal.jsonl" for arm in ARMS}
            options.picture.write_text(steps_picture(journals, step=NUM_STEPS))
    print(json.dumps({name: found[name] for name in ("weights", "speedup", "mean")}, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
