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
from statistics import fmean, stdev
from typing import Any

from compared_runs import Comparison, compared, parse, write

SCHEDULES = ("sync", "tail-batching", "active-partial", "one-step", "async-cap")
LEAST_DIFFERENCE = -0.05
FEWER_BUBBLES = ("tail-batching", "active-partial")
STUDENT_T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles for 1, 2, ... degrees of freedom."""


def look_at(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per run."""
    return [{"seed": comparison.seed, **row} for row in comparison.rows()]


def summarize(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one schedule, over all seeds."""
    mine = [row for row in rows if row["schedule"] == name]
    means = ("wall_s", "seconds_per_step", "bubble_share", "rollout_idle_share", "trainer_idle_share", "staleness_max")
    summary: dict[str, Any] = {f"{key}_mean": fmean(row[key] for row in mine) for key in means}
    summary["wasted_share_mean"] = fmean(row["tokens_wasted"] / row["tokens_generated"] for row in mine)
    summary["accuracy"] = {
        set_name: _difference([_after(row, set_name) for row in mine], _of_sync(rows, set_name))
        for set_name in mine[0]["accuracy"]
    }
    summary["every_prompt_accounted_for"] = all(row["prompts"]["adds_up"] for row in mine)
    summary["trained_twice"] = sum(row["prompts"]["trained_twice"] for row in mine)
    return summary


def _after(row: dict[str, Any], set_name: str) -> float:
    return float(row["accuracy"][set_name]["after"])


def _of_sync(rows: list[dict[str, Any]], set_name: str) -> list[float]:
    return [_after(row, set_name) for row in rows if row["schedule"] == "sync"]


def _difference(after: list[float], sync: list[float]) -> dict[str, Any]:
    differences = [mine - theirs for mine, theirs in zip(after, sync, strict=True)]
    mean, half = fmean(differences), _half_width(differences)
    return {
        "after_mean": fmean(after),
        "difference_to_sync": mean,
        "interval_95": None if half is None else [mean - half, mean + half],
        "differences": differences,
    }


def _half_width(values: list[float]) -> float | None:
    """Of the 95 % interval of the mean; one value has none."""
    freedom = len(values) - 1
    if freedom < 1:
        return None
    return STUDENT_T_975[min(freedom, len(STUDENT_T_975)) - 1] * stdev(values) / len(values) ** 0.5


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
        accuracies = "; ".join(f"{key} {_interval(found)}" for key, found in summary["accuracy"].items())
        print(
            f"{name:15} {summary['wall_s_mean']:7.1f} {summary['seconds_per_step_mean']:7.2f}"
            f" {summary['bubble_share_mean']:7.1%} {summary['wasted_share_mean']:7.1%}  {accuracies}"
        )
    for name, has_passed in verdicts.items():
        print(f"{'pass' if has_passed else 'FAIL'}  {name.replace('_', ' ')}")


def _interval(found: dict[str, Any]) -> str:
    shown = f"{found['after_mean']:.3f} {found['difference_to_sync']:+.3f}"
    if found["interval_95"] is not None:
        low, high = found["interval_95"]
        shown += f" [{low:+.3f}, {high:+.3f}]"
    return shown


def main() -> int:
    options = parse(__doc__, seeds=5)
    with compared(options, SCHEDULES) as comparisons:
        rows = [row for comparison in comparisons for row in look_at(comparison)]
    summaries = {name: summarize(name, rows) for name in SCHEDULES}
    verdicts = judge(summaries)
    show(summaries, verdicts)
    write(options, "schedules", {"verdicts": verdicts, "summary": summaries, "runs": rows})
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
