"""Rollout plus exposed reward seconds: rewards after the rollout, streamed, and streamed with adaptive time limits.

    python benchmarks/reward_limits.py --json benchmarks/results/reward_limits.json

Real runs (`sync`, 4 prompts x 8 responses, 8 steps over 8 problems) with the real sandbox in mode strong, two programs
at a time. Responses come from the `timed` engine, which uses no CPU. Each problem has five cases. A program draws from
its own text what it is:

    5 %    never ends, from a case on that it draws (RollPacker, section 4.1: around 5 % reach the limit)
    35 %   answers wrong, from a case on that it draws (assumed)
    60 %   right (assumed)

A case takes CPU time: a median of 10 ms (assumed), lognormal with 0.8 between problems and 0.6 between cases, at most
0.6 s; the responses to a problem vary by 1 to 1.3 times, which is less than lambda. Limits are a tenth of the paper's:
T_max 3 s, T_min 0.2 s, lambda 1.5. The arms of a seed run one after the other, and have the same responses.

A right program that was cut is counted by its text, not by what the run says of it. The last arm runs beside two busy
processes. Probes: responses that have T_max so that slow programs can be seen; their price is what they took beyond
the limits that they would have had.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import tailrace
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId
from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import load_tokenizer
from tailrace.observe.journal import journal_file
from tailrace.policies.timeouts.adaptive import is_probe
from tailrace.store.payload_reader import PayloadReader

NUM_PROBLEMS, NUM_CASES, NUM_STEPS, PROMPTS, RESPONSES = 8, 5, 8, 4, 8
MOST_S, LEAST_S, FACTOR, PROBES = 3.0, 0.2, 1.5, 0.02
MEDIAN_S, BETWEEN, WITHIN, LONGEST_S, VARIATION = 0.010, 0.8, 0.6, 0.6, 0.3
ENDLESS, WRONG = 0.05, 0.35
LENGTH_MEDIAN, LENGTH_SPREAD, LONGEST = 50, 0.7, 192
TOKEN_S = 0.02
ARMS: dict[str, dict[str, Any]] = {
    "barrier": {"reward.timing": "barrier"},
    "streamed": {},
    "streamed, adaptive": {"reward.code_tests.timeouts": "adaptive"},
    "streamed, adaptive, beside two busy processes": {"reward.code_tests.timeouts": "adaptive"},
}
SUFFIX = """'''
import time, zlib
number = zlib.crc32(text.encode())
case, start = int(input()), number // 1000 % {cases}
kind, vary = number % 1000 / 1000, 1 + {variation} * (number // 1000000 % 1000) / 1000
if kind < {endless} and case >= start:
    while True: pass
until = time.process_time() + {seconds}[case] * vary
while time.process_time() < until: pass
print(-1 if {endless} <= kind < {endless} + {wrong} and case >= start else case + 1)
"""


def problems(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [_problem(number, rng) for number in range(NUM_PROBLEMS)]


def _problem(number: int, rng: random.Random) -> dict[str, Any]:
    usual = MEDIAN_S * math.exp(BETWEEN * rng.gauss(0, 1))
    seconds = [min(LONGEST_S, usual * math.exp(WITHIN * rng.gauss(0, 1))) for _ in range(NUM_CASES)]
    suffix = SUFFIX.format(cases=NUM_CASES, variation=VARIATION, endless=ENDLESS, wrong=WRONG, seconds=seconds)
    return {
        "prompt": f"{number + 1}+1=",
        "program_prefix": f"text = '''{number} ",
        "program_suffix": suffix,
        "tests": [{"input": str(case), "output": str(case + 1)} for case in range(NUM_CASES)],
    }


def kind_of(problem: int, text: str) -> str:
    """What the program of a response is, by its text."""
    drawn = zlib.crc32(f"{problem} {text}".encode()) % 1000 / 1000
    return "endless" if drawn < ENDLESS else "wrong" if drawn < ENDLESS + WRONG else "right"


def lengths(seed: int, folder: Path) -> Path:
    """Long-tailed lengths of the responses, as a trace."""
    rng = random.Random(seed)
    rows = [
        [
            min(LONGEST, max(2, round(LENGTH_MEDIAN * math.exp(LENGTH_SPREAD * rng.gauss(0, 1)))))
            for _ in range(RESPONSES)
        ]
        for _ in range(NUM_PROBLEMS * NUM_STEPS)
    ]
    path = folder / "lengths.json"
    path.write_text(json.dumps(rows))
    return path


def run(arm: Mapping[str, Any], seed: int, folder: Path) -> Path:
    settings: dict[str, Any] = {
        "rollout.engine": "timed",
        "rollout.costs.k4": TOKEN_S,
        "rollout.forced_lengths": str(lengths(seed, folder.parent)),
        "rollout.n_samples_per_prompt": RESPONSES,
        "rollout.max_response_length": LONGEST,
        "rollout.max_running": PROMPTS * RESPONSES,
        "reward.code_tests.workers": 2,
        "reward.code_tests.case_timeout_s": MOST_S,
        "reward.code_tests.min_case_timeout_s": LEAST_S,
        "reward.code_tests.timeout_factor": FACTOR,
        "reward.code_tests.timeout_probe_share": PROBES,
        "schedule.preset": "sync",
        "schedule.rollout_batch_size": PROMPTS,
        "schedule.max_steps": NUM_STEPS,
        "model.device": "cpu",
        "trainer.threads": 1,
        "keep_rollouts": True,
        "report": False,
        "seed": seed,
        **arm,
    }
    result = tailrace.train(
        model="tiny-arith",
        prompts=problems(seed),
        reward="code_tests",
        output_dir=folder,
        say=lambda _: None,
        **settings,
    )
    assert result.is_complete, result
    return folder


def figures(folder: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row["timing_s/gen"] + row["timing_s/reward_exposed"] for row in rows if "timing_s/step" in row]
    first = NUM_PROBLEMS // PROMPTS
    return {
        "seconds": steps,
        "per_step_s": fmean(steps),
        "first_pass_s": fmean(steps[:first]),
        "later_passes_s": fmean(steps[first:]),
        "rollout_s": fmean(row["timing_s/gen"] for row in rows if "timing_s/step" in row),
        "tokens_per_step": fmean(
            row["response_length/mean"] * PROMPTS * RESPONSES for row in rows if "timing_s/step" in row
        ),
        **_programs(folder),
    }


def _programs(folder: Path) -> dict[str, Any]:
    """Verdicts by kind of program, and what probes cost."""
    tokenizer = load_tokenizer(resolve_model("tiny-arith"))
    kinds: dict[str, int] = {}
    limits: dict[ResponseId, do.CaseLimits] = {}
    found = {"cut_right": 0, "cut_endless": 0, "probes": 0, "cut_probes": 0, "probe_extra_s": 0.0}
    with PayloadReader.open(folder / "payload") as payload:
        for _, entry in journal_file.read(folder / "journal.jsonl"):
            for command in entry.commands:
                if isinstance(command, do.Score):
                    limits.update(zip(command.responses, command.limits, strict=False))
            if not isinstance(entry.event, ev.ResponsesScored):
                continue
            for scored in entry.event.scores:
                tokens = payload.response(scored.response).tokens
                text = tokenizer.decode(tokens, skip_special_tokens=True)
                kind = kind_of(scored.response.group.prompt, text)
                kinds[kind] = kinds.get(kind, 0) + 1
                is_probing = bool(limits) and is_probe(scored.response, PROBES)
                found["probes"] += is_probing
                if scored.cut_cases or (dict(scored.extras).get("verdict/time")):
                    found["cut_right"] += kind == "right"
                    found["cut_endless"] += kind == "endless"
                    found["cut_probes"] += is_probing
                    found["probe_extra_s"] += (MOST_S - LEAST_S) * is_probing
    return {"programs": kinds, **found}


@contextmanager
def busy(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(options.seeds):
            for arm, settings in ARMS.items():
                folder = Path(scratch, f"{seed}-{len(results[arm])}-{list(ARMS).index(arm)}", "run")
                folder.parent.mkdir()
                with busy(2 if "busy" in arm else 0):
                    found = figures(run(settings, seed, folder))
                results[arm].append(found)
                print(f"seed {seed}  {arm:<48} {found['per_step_s']:6.2f} s per step", flush=True)
            load.append(os.getloadavg()[0])
    print("\n".join(lines(results)))
    if options.json:
        setting = {
            "cores": os.cpu_count(),
            "load_average": load,
            "most_s": MOST_S,
            "least_s": LEAST_S,
            "factor": FACTOR,
        }
        options.json.write_text(json.dumps({"setting": setting, "arms": results}, indent=1) + "\n")


def lines(results: Mapping[str, list[dict[str, Any]]]) -> Iterator[str]:
    base = [each["per_step_s"] for each in results["streamed"]]
    for arm, runs in results.items():
        seconds = [each["per_step_s"] for each in runs]
        ratios = [one / other for one, other in zip(base, seconds, strict=True)]
        totals = {
            name: sum(each[name] for each in runs) for name in ("cut_right", "cut_endless", "probes", "cut_probes")
        }
        yield (
            f"{arm:<48} {fmean(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
            f"  streamed / this {fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            f"  rollout alone {fmean(each['rollout_s'] for each in runs):.2f} s"
            f"  cut: {totals['cut_right']} right, {totals['cut_endless']} endless"
            f"  probes: {totals['probes']}, {totals['cut_probes']} of them cut,"
            f" {sum(each['probe_extra_s'] for each in runs):.1f} s"
        )


if __name__ == "__main__":
    main()
