"""StaleFlow on real engines: is the bound kept, what does it teach, do versions differ, what does steering cost?

    python benchmarks/staleflow.py --json FILE [--seeds 5] [--parallel 5 --cores-each 2] [--keep DIR]

`tailrace compare long-tail` once per seed: ``sync``, and ``staleflow`` at bounds 0, 1 and 3 on two instances, with
batches of 8 prompts: what a new version lets in then is as much as one instance holds, so the other has a choice. A
CPU computes for nearly all of a step, so instances are loaded up to the last percent (``min_gain``), and one is nearly
as many times as fast as another as it has responses, which alone is no reason to move them (``max_gap``). Of every run
of ``staleflow``:

* trained responses older than the bound;
* accuracy on 1,000 held-out prompts after the last step (sampled, and greedy) and its difference to ``sync`` with the
  same seed, with the 95 % interval of Student's t over the seeds;
* seconds in which two instances generated with different versions, and how often that began;
* overhead, as a share of wall time from the first response to the last step. Pull, route and interrupt: seconds that
  instances spent in them instead of generating, the mean of the instances. Plan: processor seconds of the controller's
  rules that plan (`planning_share.py`). Beside it, not part of it: all its decisions, which `sync` has as well.

It passes if nothing trained was older than its bound, if every interval lies above -0.05, if versions differed in every
run of each bound above 0, and if pull + route + interrupt + plan are under 3 % in the mean of each bound. Exit
status 1: it does not pass.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from accuracy import LEAST_DIFFERENCE, accuracy_beside_sync, shown
from compared_runs import Comparison, compared, parse, write
from planning_share import planning_s

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.time_use.timeline import Lane, Timeline

BOUNDS = (0, 1, 3)
SETTINGS = {
    "schedule.rollout_batch_size": 8,
    "schedule.coordination.min_gain": 0.001,
    "schedule.coordination.max_gap": 50,
}
VARIANTS = tuple(f"staleflow@{bound}" for bound in BOUNDS)
SCHEDULES = ("sync", *VARIANTS)
MOST_OVERHEAD = 0.03
COLUMNS = ("pull", "route", "interrupt", "plan", "total", "all_decisions")


def look_at(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per run."""
    rows = []
    for row in comparison.rows():
        entries = comparison.journal(row["schedule"])
        found = {"versions": versions_apart(entries), "overhead": overhead(entries)}
        rows.append({"seed": comparison.seed, **row, **found})
    return rows


def versions_apart(entries: Sequence[Entry]) -> dict[str, float]:
    """While at least two instances generated: for how long, and from how many moments on, with different versions."""
    timeline = Timeline()
    for entry in entries:
        timeline.feed(entry)
    edges = sorted(edge for number, lane in enumerate(timeline.lanes()) for edge in _edges(number, lane))
    versions: dict[int, int] = {}
    seconds, moments, since = 0.0, 0, None
    for now, is_begin, number, version in edges:
        if is_begin:
            versions[number] = version
        else:
            del versions[number]
        is_apart = len(set(versions.values())) > 1
        if is_apart and since is None:
            since, moments = now, moments + 1
        elif not is_apart and since is not None:
            seconds, since = seconds + now - since, None
    return {"seconds_apart": seconds, "moments_apart": moments}


def _edges(number: int, lane: Lane) -> list[tuple[float, bool, int, int]]:
    spans = [span for span in lane.spans if span.version is not None]
    begins = [(span.start, True, number, span.version or 0) for span in spans]
    return begins + [(span.end, False, number, span.version or 0) for span in spans]


def overhead(entries: Sequence[Entry]) -> dict[str, float]:
    """Shares of the wall time between the first response that was given out and the last step."""
    began = next(e.now for e in entries if any(isinstance(c, do.Submit) for c in e.commands))
    ended = max(e.now for e in entries if isinstance(e.event, ev.StepTrained))
    within = [entry for entry in entries if began <= entry.now <= ended]
    instances = {e.event.instance for e in entries if isinstance(e.event, ev.InstanceStarted)}
    reports = [entry.event for entry in within if isinstance(entry.event, ev.RolloutReported)]
    instance_s = {
        "pull": sum(entry.event.seconds for entry in within if isinstance(entry.event, ev.WeightsPulled)),
        "route": sum(report.submit_s for report in reports),
        "interrupt": sum(report.interrupt_s for report in reports),
    }
    wall_s = ended - began
    shares = {name: seconds / len(instances) / wall_s for name, seconds in instance_s.items()}
    planned_s = dict(zip(map(id, entries), planning_s(entries), strict=True))
    shares["plan"] = sum(planned_s[id(entry)] for entry in within) / wall_s
    decided_s = sum(entry.decided_s for entry in within)
    return {**shares, "total": sum(shares.values()), "all_decisions": decided_s / wall_s, "wall_s": wall_s}


def summarize(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one schedule, over all seeds."""
    mine = [row for row in rows if row["schedule"] == name]
    return {
        **{f"{key}_mean": fmean(row[key] for row in mine) for key in ("wall_s", "seconds_per_step", "staleness_mean")},
        "staleness_max": max(row["staleness_max"] for row in mine),
        "violations": sum(row["staleness_violations"] for row in mine),
        "accuracy": accuracy_beside_sync(name, rows),
        "seconds_apart": [row["versions"]["seconds_apart"] for row in mine],
        "moments_apart": [row["versions"]["moments_apart"] for row in mine],
        "overhead": {part: fmean(row["overhead"][part] for row in mine) for part in COLUMNS},
        "every_prompt_accounted_for": all(row["prompts"]["adds_up"] for row in mine),
    }


def judge(summaries: dict[str, dict[str, Any]]) -> dict[str, bool]:
    flows = [summaries[name] for name in VARIANTS]
    intervals = [found["interval_95"] for flow in flows for found in flow["accuracy"].values()]
    return {
        "nothing_older_than_its_bound": not any(flow["violations"] for flow in flows),
        "every_prompt_accounted_for": all(flow["every_prompt_accounted_for"] for flow in flows),
        "accuracy_within_0.05_of_sync": all(found is not None and found[0] > LEAST_DIFFERENCE for found in intervals),
        "instances_at_different_versions": all(
            all(moments > 0 for moments in flow["moments_apart"])
            for bound, flow in zip(BOUNDS, flows, strict=True)
            if bound
        ),
        "overhead_under_3_percent": all(flow["overhead"]["total"] < MOST_OVERHEAD for flow in flows),
    }


def show(summaries: dict[str, dict[str, Any]], verdicts: dict[str, bool]) -> None:
    heads = "".join(f" {part.replace('_', ' '):>13}" for part in COLUMNS)
    columns = f"{'schedule':13} {'s/step':>7} {'stale':>6} {'apart s':>8} {'in runs':>7}{heads}"
    print(f"{columns}  accuracy, difference to sync [95 %]")
    for name, summary in summaries.items():
        shares = "".join(f" {summary['overhead'][part]:>13.2%}" for part in COLUMNS)
        accuracies = "; ".join(f"{key} {shown(found)}" for key, found in summary["accuracy"].items())
        num_apart = sum(moments > 0 for moments in summary["moments_apart"])
        print(
            f"{name:13} {summary['seconds_per_step_mean']:7.2f} {summary['staleness_max']:6}"
            f" {fmean(summary['seconds_apart']):8.1f} {num_apart:7}{shares}  {accuracies}"
        )
    for name, has_passed in verdicts.items():
        print(f"{'pass' if has_passed else 'FAIL'}  {name.replace('_', ' ')}")


def main() -> int:
    options = parse(__doc__, seeds=5)
    with compared(options, SCHEDULES, SETTINGS) as comparisons:
        rows = [row for comparison in comparisons for row in look_at(comparison)]
    summaries = {name: summarize(name, rows) for name in SCHEDULES}
    verdicts = judge(summaries)
    show(summaries, verdicts)
    write(
        options,
        "staleflow",
        {
            "settings": SETTINGS,
            "verdicts": verdicts,
            "summary": summaries,
            "seeds": sorted({row["seed"] for row in rows}),
        },
    )
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
