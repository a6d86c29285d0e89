"""Does advice that was asked of one recorded run foretell what other runs took? `tailrace advise` beside real runs.

    python benchmarks/advice.py --json benchmarks/results/advice.json [--jobs 3] [--record]

Three sets of kept journals: the same prompts, lengths and machine under several presets, each preset a real run of its
own. Advice sees one run of a set (`sync`) or two of them (`sync` and `one-step`) and predicts the seconds per step of
the others, which are compared with what their own journals recorded. Three attempts:

* `half`: from `sync`, which never trains beside rollout; assumed that each then gets half of the devices.
* `assumed`: from `sync`; on a GPU the assumption is what runs outside of these sets showed (`sim/calibrate.py`).
* `measured`: from `sync` and `one-step`, as with `tailrace advise RUN --with OTHER`.

A fourth set has streamed runs (`streamed`): the same prompts under `sync`, `stage-overlap`, `tail-batching` and
`rollpacker`, seven steps each. It is asked of `sync`, of `stage-overlap` and of both. Journals of the last two runs
were not kept; their seconds per step are those of `gpu_streamed_h200.json`.

`--record` first records the set of the CPU again (about 5 minutes on two cores).
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gpu_schedules import read_kept

from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.schedules.comparison import figures_of
from tailrace.sim.advice.advisor import LEAST_MARGIN, own_error
from tailrace.sim.advice.candidates import Candidate, candidates
from tailrace.sim.advice.evidence import Evidence, first_steps
from tailrace.sim.advice.prediction import PredictedSpeed, predict
from tailrace.sim.world import Sharing

JOURNALS = Path(__file__).resolve().parent / "results" / "journals"
PRESETS = ("sync", "one-step", "tail-batching", "active-partial", "async-cap", "staleflow")
ASKED, BESIDE = "sync", "one-step"
CPU = "advice_cpu"
STREAMED = "gpu_streamed_h200"
STREAMED_PRESETS = ("sync", "stage-overlap", "tail-batching", "rollpacker")
STREAMED_STEPS = 7
STREAMED_QUESTIONS = (("sync",), ("stage-overlap",), ("stage-overlap", "sync"))
"""The runs that are asked: the schedule of the first is the one that advice would replace."""
SETS = (CPU, "gpu_schedules_h200_135m", "gpu_schedules_h200_1_5b")
ATTEMPTS = ("half", "assumed", "measured")
RECORDED = {
    "rollout.num_instances": 1,
    "trainer.threads": 1,
    "eval": [],
    "eval_interval": None,
    "schedule.max_steps": 30,
    "report": False,
}
"""The recipe `long-tail` with one engine and a trainer of one thread each, on two cores, without evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSet:
    name: str
    journals: Mapping[str, list[Entry]]
    config: Mapping[str, Any]

    @classmethod
    def read(cls, name: str) -> RecordedSet:
        folder = JOURNALS / name
        return cls(
            name=name,
            journals={preset: read_kept(folder / f"{preset}.jsonl.gz") for preset in PRESETS},
            config=json.loads((folder / f"{ASKED}.config.json").read_text()),
        )

    def evidence(self, *, is_measured: bool) -> Evidence:
        others = [self.journals[BESIDE]] if is_measured else []
        return Evidence.of(self.journals[ASKED], self.config, others=others)


def schedules(evidence: Evidence, own: str = ASKED, presets: Sequence[str] = PRESETS) -> dict[str, Schedule]:
    """The presets as they are. ``own``: that of the run."""
    tried = {
        each.preset: each.schedule
        for each in candidates(evidence.schedule, evidence.config)
        if isinstance(each, Candidate) and not each.knobs
    }
    return {name: {own: evidence.schedule, **tried}[name] for name in presets}


def predictions(evidence: Evidence) -> dict[str, PredictedSpeed]:
    return {name: predict(evidence, schedule) for name, schedule in schedules(evidence).items()}


def with_halves(evidence: Evidence, assumed: dict[str, PredictedSpeed]) -> tuple[Evidence, dict[str, PredictedSpeed]]:
    """The same, if rollout and training are assumed to get half of the devices each."""
    costs = replace(evidence.calibration.costs, sharing=Sharing(rollout=2.0, training=2.0))
    calibration = replace(evidence.calibration, costs=costs)
    known = replace(evidence, calibration=calibration, extremes=())
    again = {
        name: predict(known, schedule)
        for name, schedule in schedules(evidence).items()
        if evidence.calibration.rests_on_assumption(schedule)
    }
    return known, assumed | again


def attempts(runs: RecordedSet) -> list[dict[str, Any]]:
    alone = runs.evidence(is_measured=False)
    assumed = predictions(alone)
    measured = runs.evidence(is_measured=True)
    found = {"half": with_halves(alone, assumed), "assumed": (alone, assumed)}
    found["measured"] = (measured, predictions(measured))
    recorded = {name: figures_of(runs.journals[name]).seconds_per_step for name in PRESETS}
    seen = {"half": (ASKED,), "assumed": (ASKED,), "measured": (ASKED, BESIDE)}
    return [
        {"set": runs.name, "attempt": attempt, **beside(recorded, seen[attempt], *found[attempt])}
        for attempt in ATTEMPTS
    ]


def streamed() -> list[dict[str, Any]]:
    """Advice that was asked of streamed runs, and of others about streamed schedules."""
    folder = JOURNALS / STREAMED
    kept = json.loads((folder.parents[1] / f"{STREAMED}.json").read_text())["schedules"]
    recorded = {name: kept[name]["figures"]["seconds_per_step"] for name in STREAMED_PRESETS}
    journals = {name: read_kept(folder / f"{name}.jsonl.gz") for name in ("sync", "stage-overlap")}
    recorded["sync"] = figures_of(first_steps(journals["sync"], STREAMED_STEPS)).seconds_per_step
    rows = []
    for seen in STREAMED_QUESTIONS:
        config = json.loads((folder / f"{seen[0]}.config.json").read_text())
        first, *others = (journals[name] for name in seen)
        evidence = Evidence.of(first, config, others=others, num_steps=STREAMED_STEPS)
        presets = schedules(evidence, seen[0], STREAMED_PRESETS)
        found = {name: predict(evidence, schedule) for name, schedule in presets.items()}
        rows.append({"set": STREAMED, "attempt": " and ".join(seen), **beside(recorded, seen, evidence, found)})
    return rows


def beside(
    recorded: Mapping[str, float], seen: Sequence[str], evidence: Evidence, found: Mapping[str, PredictedSpeed]
) -> dict[str, Any]:
    """The predictions beside what was recorded. ``seen``: the runs that were asked."""
    errors = {name: found[name].step_s / recorded[name] - 1 for name in recorded}
    predicted = {name: found[name].step_s for name in recorded}
    best, named = (min(recorded, key=lambda name: of[name]) for of in (recorded, predicted))
    sharing = evidence.calibration.costs.sharing
    error = own_error(evidence, found[seen[0]])
    reach = found[named].step_s * (1.0 + max(LEAST_MARGIN, error))
    return {
        "asked": list(seen),
        "steps": evidence.num_steps,
        "own_error": round(error, 4),
        "slowdowns": [round(sharing.rollout, 2), round(sharing.training, 2)],
        "mean_error": round(fmean(abs(errors[name]) for name in recorded if name not in seen), 4),
        "best_recorded": best,
        "best_predicted": named,
        "best_recorded_is_named_or_not_told_apart": found[best].least_s <= max(reach, found[named].most_s),
        "schedules": {
            name: {
                "recorded_s": round(recorded[name], 4),
                "predicted_s": round(found[name].step_s, 4),
                "range_s": [round(found[name].least_s, 4), round(found[name].most_s, 4)],
                "error": round(errors[name], 4),
                "drawn_share": round(found[name].drawn_share, 4),
            }
            for name in recorded
        },
    }


def summary(rows: list[dict[str, Any]], attempt: str) -> dict[str, Any]:
    mine = [row for row in rows if row["attempt"] == attempt]
    return {
        "mean_error": round(fmean(row["mean_error"] for row in mine), 4),
        "best_named_or_not_told_apart": sum(row["best_recorded_is_named_or_not_told_apart"] for row in mine),
        "best_named": sum(row["best_recorded"] == row["best_predicted"] for row in mine),
        "sets": len(mine),
    }


def streamed_summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {row["attempt"]: row["mean_error"] for row in rows if row["set"] == STREAMED}


def record() -> None:
    """Run every preset on this machine, one after another, and keep the journals and settings."""
    with tempfile.TemporaryDirectory() as folder:
        given = [part for name, value in RECORDED.items() for part in (f"--{name}", json.dumps(value))]
        command = [sys.executable, "-m", "tailrace", "compare", "long-tail", "--schedules", ",".join(PRESETS)]
        subprocess.run([*command, *given, "--output_dir", f"{folder}/runs"], check=True)
        for preset in PRESETS:
            keep(Path(folder) / "runs" / preset, preset)


def keep(run: Path, preset: str) -> None:
    kept = JOURNALS / CPU
    kept.mkdir(parents=True, exist_ok=True)
    (kept / f"{preset}.jsonl.gz").write_bytes(gzip.compress((run / "journal.jsonl").read_bytes(), mtime=0))
    config = json.loads((run / "config.json").read_text()) | {"output_dir": "run"}
    (kept / f"{preset}.config.json").write_text(json.dumps(config, indent=2) + "\n")


def of_set(name: str) -> list[dict[str, Any]]:
    return streamed() if name == STREAMED else attempts(RecordedSet.read(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--record", action="store_true", help="record the runs of the CPU again")
    parser.add_argument("--jobs", type=int, default=1, help="sets at the same time")
    options = parser.parse_args()
    if options.record:
        record()
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = [row for found in pool.map(of_set, (STREAMED, *SETS)) for row in found]
    for row in rows:
        shown = ", ".join(f"{preset} {each['error']:+.1%}" for preset, each in row["schedules"].items())
        print(
            f"{row['set']} {row['attempt']}: mean {row['mean_error']:.1%}; best {row['best_recorded']}, named", end=" "
        )
        print(f"{row['best_predicted']}; {shown}", flush=True)
    summaries = {attempt: summary(rows, attempt) for attempt in ATTEMPTS}
    result = {"attempts": summaries, "streamed": streamed_summary(rows), "sets": rows}
    print(json.dumps(result["attempts"]), json.dumps(result["streamed"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
