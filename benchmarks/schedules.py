"""What schedules cost and what they teach: `tailrace compare long-tail`, once per seed, every run kept.

    python benchmarks/schedules.py --json FILE [--seeds 5] [--parallel 5 --cores-each 2] [--keep DIR]

Each seed is one comparison on the same prompts, seeds and number of optimizer steps. Of every schedule: wall seconds,
bubble share, accuracy on 1,000 held-out prompts after the last step (sampled at temperature 1, and greedy), and the
difference of the accuracy to ``sync`` with the same seed, with the 95 % interval of Student's t over the seeds.

It passes if, in every run, trained + queued + buffered + in flight + filtered + dropped = issued and no prompt is
trained twice in a pass; if the interval of the difference lies above -0.05 for every schedule; and if tail batching and
active partial rollouts have a smaller mean bubble share than ``sync``. Wall time is printed and judged by nobody.
Exit status 1: it does not pass.
"""

from __future__ import annotations

import sys
from statistics import fmean
from typing import Any

from accuracy import LEAST_DIFFERENCE, accuracy_beside_sync, shown
from compared_runs import Comparison, compared, parse, write

SCHEDULES = ("sync", "tail-batching", "active-partial", "one-step", "async-cap")
FEWER_BUBBLES = ("tail-batching", "active-partial")


def look_at(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per run."""
    return [{"seed": comparison.seed, **row} for row in comparison.rows()]


def summarize(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one schedule, over all seeds."""
    mine = [row for row in rows if row["schedule"] == name]
    means = ("wall_s", "seconds_per_step", "bubble_share", "rollout_idle_share", "trainer_idle_share", "staleness_max")
    summary: dict[str, Any] = {f"{key}_mean": fmean(row[key] for row in mine) for key in means}
    summary["wasted_share_mean"] = fmean(row["tokens_wasted"] / row["tokens_generated"] for row in mine)
    summary["accuracy"] = accuracy_beside_sync(name, rows)
    summary["every_prompt_accounted_for"] = all(row["prompts"]["adds_up"] for row in mine)
    summary["trained_twice"] = sum(row["prompts"]["trained_twice"] for row in mine)
    return summary


def judge(summaries: dict[str, dict[str, Any]]) -> dict[str, bool]:
    bubbles = {name: summary["bubble_share_mean"] for name, summary in summaries.items()}
    intervals = [
        found["interval_95"]
        for name, summary in summaries.items()
        if name != "sync"
        for found in summary["accuracy"].values()
    ]
    return {
        "every_prompt_accounted_for": all(summary["every_prompt_accounted_for"] for summary in summaries.values()),
        "no_prompt_trained_twice": not any(summary["trained_twice"] for summary in summaries.values()),
        "accuracy_within_0.05_of_sync": all(found is not None and found[0] > LEAST_DIFFERENCE for found in intervals),
        **{f"{name}_has_fewer_bubbles": bubbles[name] < bubbles["sync"] for name in FEWER_BUBBLES},
    }


def show(summaries: dict[str, dict[str, Any]], verdicts: dict[str, bool]) -> None:
    print(
        f"{'schedule':15} {'wall s':>7} {'s/step':>7} {'bubble':>7} {'wasted':>7}  accuracy, difference to sync [95 %]"
    )
    for name, summary in summaries.items():
        accuracies = "; ".join(f"{key} {shown(found)}" for key, found in summary["accuracy"].items())
        print(
            f"{name:15} {summary['wall_s_mean']:7.1f} {summary['seconds_per_step_mean']:7.2f}"
            f" {summary['bubble_share_mean']:7.1%} {summary['wasted_share_mean']:7.1%}  {accuracies}"
        )
    for name, has_passed in verdicts.items():
        print(f"{'pass' if has_passed else 'FAIL'}  {name.replace('_', ' ')}")


def main() -> int:
    options = parse(__doc__, seeds=5)
    with compared(options, SCHEDULES) as comparisons:
        rows = [row for comparison in comparisons for row in look_at(comparison)]
    summaries = {name: summarize(name, rows) for name in SCHEDULES}
    verdicts = judge(summaries)
    show(summaries, verdicts)
    write(
        options,
        "schedules",
        {"verdicts": verdicts, "summary": summaries, "seeds": sorted({row["seed"] for row in rows})},
    )
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
