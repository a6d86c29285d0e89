"""Put the tables of simulated results into benchmarks/README.md.

    python benchmarks/tables.py            print them
    python benchmarks/tables.py --write    replace them in the page
    python benchmarks/tables.py --check    exit status 1 if the page differs from the results

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. Its figures come from the files in `results/`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cluster_tables
import gpu_tables
import planner_tables
from simulated_papers import note, shown_paper, shown_range

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"
GUARANTEES = {
    "sync": "strict, bound 0",
    "one-step": "strict, bound 1",
    "vanilla": "strict: no token is older than the bound; section 6.5 of the paper takes this for its baseline",
    "async-order": "strict: prompts are trained in the order in which they began",
    "async-cap": "not strict: slow responses are trained above the bound",
}
Result = dict[str, Any]


def papers(result: Result) -> list[str]:
    rows = [[r["name"], shown_paper(r), shown_range(r["simulated"]), note(r)] for r in result["papers"]]
    return table(["", "paper", "simulated", "difference"], rows)


def rewards(result: Result) -> list[str]:
    """The rows that all sizes have: one column for each size."""
    made = result["rows"]["rows"]
    sizes = list(dict.fromkeys(r["size"] for r in made))
    names = list(dict.fromkeys(r["name"] for r in made))
    by = {(r["name"], r["size"]): [shown_paper(r), shown_range(r["simulated"])] for r in made}
    rows = [[name, *(cell for size in sizes for cell in by.get((name, size), ["", ""]))] for name in names]
    return table(["", *(cell for size in sizes for cell in (f"{size}: paper", "simulated"))], rows)


def reward_steps(result: Result) -> list[str]:
    rows = [
        [r["size"], f"`{r['schedule']}`", *(f"{r[name]['mean']:.0f}" for name in ("step_s", "rollout_s", "training_s"))]
        for r in result["rows"]["seconds_of_a_step"]
    ]
    return table(["", "schedule", "seconds of a step", "generating", "training"], rows)


def rewards_changed(result: Result) -> list[str]:
    if "changed" not in result:
        return ["(not in this result)"]
    plain = {(r["name"], r["size"]): shown_range(r["simulated"]) for r in result["rows"]["rows"]}
    rows = [
        [r["name"], r["size"], r["change"], plain[r["name"], r["size"]], shown_range(r["simulated"])]
        for r in (*result["changed"]["rows"], *result["afterwards"]["rows"])
    ]
    return table(["row", "", "what is changed", "before", "after"], rows)


def streaming(result: Result) -> list[str]:
    """Tables 3 and 4: seconds of a step, and the gain over the step without streaming."""
    plain = [row for row in result["rows"] if not row["change"]]
    gains = {row["name"]: row for row in plain if row["table"] in ("3, gain", "4, gain")}
    made = []
    for row in (row for row in plain if row["table"] in ("3", "4")):
        gain = gains.get(row["name"])
        cells = ["", ""] if gain is None else [f"{gain['paper']:.2f}", shown_range(gain["simulated"])]
        made.append([row["name"], f"{row['paper']:.1f}", shown_range(row["simulated"]), *cells])
    return table(["", "paper, seconds", "simulated", "paper, times as fast", "simulated"], made)


def streamed_tail(result: Result) -> list[str]:
    words = {
        "2": "`tail-batching`, streamed, over `tail-batching`",
        "over stage-overlap": "the same over `stage-overlap`",
    }
    rows = [
        [words[row["table"]], row["size"], f"{row['paper']:.2f}", shown_range(row["simulated"])]
        for row in result["rows"]
        if row["table"] in words
    ]
    return table(["", "", "paper", "simulated"], rows)


def streaming_changed(result: Result) -> list[str]:
    plain = {row["name"]: row for row in result["rows"] if row["table"] == "3, gain" and not row["change"]}
    rows = [
        [row["name"], row["change"], shown_range(plain[row["name"]]["simulated"]), shown_range(row["simulated"])]
        for row in result["rows"]
        if row["change"]
    ]
    return table(["times as fast, 7B/8k", "what is changed", "before", "after"], rows)


def variations(result: Result) -> list[str]:
    low, high = result["settings"]["paper"]
    rows = [[row["name"], shown_range(row["gain"])] for row in result["rows"]]
    return table(["active partial, GRPO", "throughput over `sync`"], [["the paper", f"{low:.2f} to {high:.2f}"], *rows])


def grid(result: Result) -> list[str]:
    rows = []
    for row in result.get("grid", ()):
        rollouts = [f"{row['rollout'][name]:.2f}" for name in row["rollout"]]
        gains = [f"{row['gain'][name]:.2f}" for name in ("tail-batching", "active-partial")]
        rows.append([f"{row['cap'] // 1024}k", *rollouts, *gains])
    names = list(result["grid"][0]["rollout"]) if rows else []
    heading = ["cap", *(f"rollout time: {name}" for name in names), "gain: tail-batching", "gain: active-partial"]
    return table(heading, rows)


def orderings(result: Result) -> list[str]:
    rows = [[r["name"], f"{r['held']} of {r['of']}", _first(r["not_in"])] for r in result.get("orderings", ())]
    return table(["ordering", "holds in", "not in"], rows)


def _first(cells: str, count: int = 6) -> str:
    """Return the first of many cells."""
    names = cells.split(", ")
    return cells if len(names) <= count else f"{', '.join(names[:count])} and {len(names) - count} more"


def leads(result: Result) -> list[str]:
    rows = []
    for row in result["leads"]:
        by_bound = ", ".join(f"{each['mean']:.2f}" for each in row["by_bound"].values())
        paper = f"{row['paper']['average']:.2f}, {row['paper']['best']:.2f}"
        ours = [shown_range(row["average"]), shown_range(row["best"]), by_bound]
        rows.append([f"`{row['over']}`", GUARANTEES[row["over"]], paper, *ours])
    heading = ["`staleflow` over", "guarantees", "paper: average, best", "average", "best", "bounds 1, 2, 3"]
    return table(heading, rows)


def leads_on_grid(result: Result) -> list[str]:
    rows = [
        [f"`{r['over']}`", GUARANTEES[r["over"]], shown_range(r["lead"]), f"{r['faster']} of {r['of']}"]
        for r in result.get("grid", ())
    ]
    return table(["`staleflow` over", "guarantees", "lead: mean (least to most cell)", "faster in"], rows)


def speeds(result: Result) -> list[str]:
    rows = []
    for row in result["rows"]:
        stale = f"{row['most_stale']}; {row['groups_above_bound']:,}"
        figures = [shown_range(row["tokens_per_s"]), f"{row['step_s']:.0f}", f"{row['trainer_idle']:.0%}"]
        name = [row["setting"].removeprefix("paper/"), f"`{row['schedule']}`"]
        rows.append([*name, *figures, f"{row['split']:.3f}", stale, f"{row['drift']:.2f}"])
    heading = [
        "cap",
        "schedule",
        "tokens/s",
        "step s",
        "trainer idle",
        "share for rollout",
        "most stale; groups above the bound",
        "halves",
    ]
    return table(heading, rows)


def steady(result: Result) -> list[str]:
    if (found := result.get("async_cap_drift")) is None:
        return ["(no grid in this result)"]
    drift, off = found["drift"], ", ".join(found["not_in"])
    return [
        f"`async-cap` on the grid, speed in the second half of its window over that in the first: {drift['mean']:.2f}"
        f" in the mean, {drift['min']:.2f} to {drift['max']:.2f}; within 5 % in {found['near_1']} of {found['of']}"
        f" cells{f' (not in {off})' if off else ''}."
    ]


def windows(result: Result) -> list[str]:
    rows = [
        [f"{row['cell']}@3", *(f"{lead['short']:.2f}, {lead['long']:.2f}" for lead in row["lead_over"].values())]
        for row in result["windows"]
    ]
    return table(["cell", *(f"over `{name}`" for name in result["windows"][0]["lead_over"])], rows)


def splits(result: Result) -> list[str]:
    rows = [
        [f"`{row['schedule']}`", *(f"{speed:,}" for speed in row["tokens_per_s"].values())]
        for row in result["splits_at_40k"]
    ]
    shares = result["splits_at_40k"][0]["tokens_per_s"]
    return table(["tokens/s at 40k", *(f"share for rollout {share}" for share in shares)], rows)


def sweeps(result: Result) -> list[str]:
    rows = [
        [
            r["sweep"],
            str(r["cap"]),
            str(r["prompts"]),
            str(r["devices"]),
            *(f"{x:.2f}" for x in r["over_sync"].values()),
        ]
        for r in result.get("sweeps", ())
    ]
    names = [f"`{name}`" for name in result["sweeps"][0]["over_sync"]] if rows else []
    return table(["varied", "cap", "prompts", "devices", *names], rows)


def cluster_time(result: Result) -> list[str]:
    cpu_s, machine = result.get("cpu_s"), result.get("machine")
    return ["(not measured)" if cpu_s is None else f"The tables below took {cpu_s} s of CPU time ({machine})."]


def cluster_backlog(result: Result) -> list[str]:
    rows = []
    for row in result["backlog"]:
        shared = ", ".join(f"{name}: {count}" for name, count in row["jobs_per_group"].items())
        ratios = [shown_range(found) for found in row["ratio"].values()]
        rows.append([str(row["most"]), shared, *ratios, f"{row['divisible']:.2f}"])
    heading = ["jobs per group, at most", "with the duty cap", *result["backlog"][0]["ratio"], "divisible groups"]
    return table(heading, rows)


def cluster_unknown(result: Result) -> list[str]:
    rows = [
        [f"{row['known_share']:.0%}", f"`{row['policy']}`", shown_range(row["ratio"]), shown_range(row["saving"])]
        for row in result.get("unknown", ())
    ]
    return table(["known jobs", "policy", "makespan over `isolated`", "device-hours saved"], rows)


def cluster_arrivals(result: Result) -> list[str]:
    shares = ("0.25", "0.5", "0.75", "0.9", "1")
    rows = [
        [r["policy"], *(shown_range(r["wait_ratio"][share]) for share in shares), shown_range(r["slowdown"])]
        for r in result["arrivals"]
    ]
    return table(["policy", *(f"{float(share):.0%}" for share in shares), "slowdown"], rows)


def cluster_two_jobs(result: Result) -> list[str]:
    rows = []
    for r in result["two_jobs"]:
        curve = [f"{found['mean']:.1%}" for found in r["by_share"].values()]
        saving = r["saving"]
        saved = f"{saving['mean']:.1%} ({saving['min']:.1%} to {saving['max']:.1%})"
        kind = ["in advance" if r["predict_switches"] else "when asked", f"{r['room_for_states']:g}"]
        figures = [f"{r['slowdown']['mean']:.3f}", saved, f"{r['paper']:.1%}"]
        rows.append([r["model"], *kind, *figures, *curve, shown_range(r["share_of_paper"])])
    shares = [f"share {float(share):.2f}" for share in result["two_jobs"][0]["by_share"]]
    heading = [
        "model",
        "state moves",
        "states that fit on the devices",
        "slowdown",
        "saved",
        "paper",
        *shares,
        "share that gives the paper's",
    ]
    return table(heading, rows)


def cluster_parts(result: Result) -> list[str]:
    rows = []
    for r in result["rows"]:
        saving = r["saving"]
        saved = f"{saving['mean']:.1%} ({saving['min']:.1%} to {saving['max']:.1%})"
        moves = r["rules"].replace("-", " ")
        rows.append(
            [
                str(r["jobs"]),
                r["state"],
                moves,
                f"{r['slowdown']['mean']:.3f}",
                saved,
                f"{r['tb_per_step']['mean']:.2f}",
            ]
        )
    return table(["jobs", "state on the devices", "state moves", "slowdown", "saved", "TB moved per step"], rows)


def cluster_arbitration(result: Result) -> list[str]:
    cells: dict[tuple[str, str, int], dict[str, str]] = {}
    for r in result["arbitration"]:
        shown = f"{r['slowdown']['mean']:.2f}; {r['switches_per_step']['mean']:.1f}"
        cells.setdefault((r["overlap"], r["model"], r["jobs"]), {})[r["rules"]] = shown
    rows = [[overlap, model, str(jobs), *row.values()] for (overlap, model, jobs), row in cells.items()]
    names = list(dict.fromkeys(r["rules"] for r in result["arbitration"]))
    return table(["overlap", "model", "jobs", *(f"`{name}`" for name in names)], rows)


def own_runs_alone(result: Result) -> list[str]:
    rows = [
        [
            f"`{r['name']}`", r["machine"], str(r["steps"]), f"{r['duty']:.0%}", f"{r['wall_s']:.1f} s",
            f"{r['simulated_s']:.1f} s", f"{r['simulated_over_wall']:.3f}",
            f"{r['simulated_over_wall_with_evaluation']:.3f}", f"{r['second_half_over_measured']:.2f}",
        ]
        for r in result["alone"]
    ]  # fmt: skip
    heading = [
        "run", "machine", "steps", "duty", "wall time", "simulated alone", "simulated over wall",
        "with the evaluation after the last step",
        "second half, foretold by the first, over measured",
    ]  # fmt: skip
    return table(heading, rows)


def own_runs_shared(result: Result) -> list[str]:
    rows = [
        [
            " and ".join(f"`{name}`" for name in r["runs"]), r["machine"], str(r["steps"]),
            " instead of ".join(str(number) for number in reversed(r["devices"])), f"{r['slowdown']:.3f}",
            f"{r['switches_per_step']:.2f}", f"{r['saving']:.1%}",
        ]
        for r in result["shared"]
    ]  # fmt: skip
    return table(["runs", "machine", "steps", "devices", "slowdown", "switches per step", "device-hours saved"], rows)


TABLES: dict[str, tuple[str, Callable[[Result], list[str]]]] = {
    "papers": ("simulated.json", papers),
    "rewards": ("simulated_rewards.json", rewards),
    "rewards steps": ("simulated_rewards.json", reward_steps),
    "rewards changed": ("simulated_rewards.json", rewards_changed),
    "streaming": ("simulated_streaming.json", streaming),
    "streamed tail batching": ("simulated_streaming.json", streamed_tail),
    "streaming changed": ("simulated_streaming.json", streaming_changed),
    "planner": ("simulated_planner.json", lambda result: planner_tables.planner(result, table)),
    "planner changed": ("simulated_planner.json", lambda result: planner_tables.planner_changed(result, table)),
    "rollpacker": ("simulated_rollpacker.json", lambda result: planner_tables.rollpacker(result, table)),
    "rollpacker arms": ("simulated_rollpacker.json", lambda result: planner_tables.rollpacker_arms(result, table)),
    "rollpacker changed": (
        "simulated_rollpacker.json",
        lambda result: planner_tables.rollpacker_changed(result, table),
    ),
    "april variations": ("april_variations.json", variations),
    "grid": ("simulated.json", grid),
    "orderings": ("simulated.json", orderings),
    "staleflow leads": ("simulated_staleflow.json", leads),
    "staleflow grid": ("simulated_staleflow_grid.json", leads_on_grid),
    "staleflow speeds": ("simulated_staleflow.json", speeds),
    "staleflow steady": ("simulated_staleflow_grid.json", steady),
    "staleflow windows": ("staleflow_checks.json", windows),
    "staleflow splits": ("staleflow_checks.json", splits),
    "staleflow sweeps": ("simulated_staleflow.json", sweeps),
    "staleflow orderings": ("simulated_staleflow_grid.json", orderings),
    "cluster time": ("cluster.json", cluster_time),
    "cluster backlog": ("cluster.json", cluster_backlog),
    "cluster unknown": ("cluster.json", cluster_unknown),
    "cluster arrivals": ("cluster.json", cluster_arrivals),
    "cluster two jobs": ("cluster.json", cluster_two_jobs),
    "placement truth": ("placement_truth.json", lambda result: cluster_tables.placement_truth(result, table)),
    "cluster queue": ("cluster_queue.json", lambda result: cluster_tables.queue(result, table)),
    "cluster arbitration": ("cluster.json", cluster_arbitration),
    "cluster parts": ("cluster_parts.json", cluster_parts),
    "cluster orderings": ("cluster.json", orderings),
    "gpu steps": ("gpu_steps_h200.json", lambda result: gpu_tables.steps(result, table)),
    "gpu steps engines": ("gpu_steps_h200_engines.json", lambda result: gpu_tables.steps(result, table)),
    "gpu steps plain": ("gpu_steps_h200_sync.json", lambda result: gpu_tables.steps(result, table)),
    "gpu steps compiled": ("gpu_steps_h200_compiled.json", lambda result: gpu_tables.steps(result, table)),
    "gpu schedules large": ("gpu_schedules_h200_1_5b.json", lambda result: gpu_tables.schedules(result, table)),
    "gpu schedules small": ("gpu_schedules_h200_135m.json", lambda result: gpu_tables.schedules(result, table)),
    "own runs alone": ("own_runs.json", own_runs_alone),
    "own runs shared": ("own_runs.json", own_runs_shared),
}


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(heading)} |", "|" + "---|" * len(heading), *lines] if lines else ["(not in this result)"]


def made(results: Path) -> dict[str, str]:
    """Return every table by its name."""
    return {name: _made(results / file, make) for name, (file, make) in TABLES.items()}


def _made(file: Path, make: Callable[[Result], list[str]]) -> str:
    if not file.exists():
        return "(not simulated yet: `python benchmarks/simulate_all.py`)"
    return "\n".join(make(json.loads(file.read_text())))


def filled(page: str, tables: dict[str, str]) -> str:
    """Return the page with its tables replaced."""

    def replaced(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{tables[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- table: ([\w ]+) -->\n.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the result files")
    parser.add_argument("--write", action="store_true", help="replace the tables in the page")
    parser.add_argument("--check", action="store_true", help="fail if the page differs from the results")
    options = parser.parse_args()
    tables, page = made(options.results), PAGE.read_text()
    if options.write:
        PAGE.write_text(filled(page, tables))
    elif not options.check:
        print("\n\n".join(f"## {name}\n{text}" for name, text in tables.items()))
    return int(options.check and filled(page, tables) != page)


if __name__ == "__main__":
    sys.exit(main())
