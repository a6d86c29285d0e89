"""The words and tables of the report, made from an account. Numbers are rounded only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from tailrace.config.continuation import Difference
from tailrace.dashboard.charts import PHASES
from tailrace.observe.account import Account
from tailrace.observe.display.progress import clock
from tailrace.observe.metrics.response_metrics import percentile
from tailrace.observe.prompts import fairness
from tailrace.observe.prompts.fates import DEFERRED, DROPPED, IN_PROGRESS, OFFERED, FateTotals
from tailrace.observe.time_use.timeline import SCORE_LANES, TRAINER

MAX_FATES = 20_000
_TO = " \N{RIGHTWARDS ARROW} "
_AT_LEAST = "\N{GREATER-THAN OR EQUAL TO} "


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    kind: str
    """`finished`, `running` or `stopped`."""
    sentence: str


def status(account: Account, *, is_alive: bool, stop_note: str) -> Status:
    so_far = f"{account.so_far} in {clock(account.now - account.began)}"
    if account.finish is not None and account.finish.is_complete:
        return Status(kind="finished", sentence=f"{so_far}.")
    if is_alive:
        return Status(kind="running", sentence=f"{so_far} so far; this page shows the run as it was when it was made.")
    reason = account.why_it_stopped(stop_note) or "its process ended without a word"
    return Status(kind="stopped", sentence=f"{so_far}, then it stopped: {reason}. The same command continues it.")


def tiles(account: Account) -> list[tuple[str, str]]:
    """The most important numbers, each with what it is."""
    found: list[tuple[str, str]] = []
    if account.steps:
        words = "mean reward" if len(account.steps) == 1 else f"mean reward, first{_TO}last"
        found.append((_change([row["reward/mean"] for row in account.steps]), words))
    for name in sorted({key for row in account.evaluations for key in row if "/avg@" in key}):
        values = [row[name] for row in account.evaluations if name in row]
        found.append((_change(values), name.removeprefix("eval/")))
    trains = account.schedule is None or account.schedule.trains
    offered = account.fates.totals(is_training=trains)[OFFERED]
    found.append((f"{offered.num_tokens:,}", "tokens generated" + (" for training" if trains else "")))
    lanes = account.timeline.lanes()
    rollout = [lane for lane in lanes if lane.name not in (*SCORE_LANES, TRAINER)]
    if rollout:
        share = sum(lane.idle_ratio for lane in rollout) / len(rollout)
        found.append((f"{share:.0%}", "of the time, rollout was idle"))
    for lane in lanes:
        if lane.name == TRAINER:
            found.append((f"{lane.idle_ratio:.0%}", "of the time, the trainer was idle"))
    if account.steps:
        waited = sum(row["timing_s/reward_exposed"] for row in account.steps)
        whole = sum(row["timing_s/step"] for row in account.steps)
        found.append((f"{waited / whole:.0%}", "of the time, training waited for rewards alone"))
    if account.losses:
        found.append((_times(len(account.losses)), "an instance was lost"))
    if account.resumed_at:
        found.append((_times(len(account.resumed_at)), "the run was resumed"))
    return found


def _change(values: Sequence[float]) -> str:
    """The first and the last value; one value alone."""
    shown = values if len(values) == 1 else (values[0], values[-1])
    return _TO.join(f"{value:.3f}" for value in shown)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def lengths_note(account: Account) -> str:
    """How trained lengths compare with natural ones, and alarms about it."""
    steps = account.fates.lengths
    ended = sorted(length for step in steps for length in step.generated)
    trained = sorted(length for step in steps for length in step.trained)
    num_censored = sum(step.observed.num_censored for step in steps)
    if not ended or not trained:
        return ""
    if ended == trained and not num_censored:
        return "Every generated response was trained on."
    counts = (
        f"{len(ended):,} responses ended (mean {fmean(ended):.1f} tokens), {num_censored:,} were stopped for good"
        f" before they ended, {len(trained):,} were trained on (mean {fmean(trained):.1f})."
    )
    alarms = fairness.alarms(account.fates, account.schedule) if account.schedule is not None else []
    return " ".join([counts, *(f"Look at this: {alarm}." for alarm in alarms)])


def length_rows(account: Account) -> list[dict[str, Any]]:
    """Trained lengths beside natural ones, over the newest steps; empty before the first step."""
    found = fairness.compare_lengths(account.fates)
    if found is None:
        return []
    trained, natural = list(found.trained), found.natural
    known = [fmean(trained), percentile(trained, 0.50), percentile(trained, 0.95), trained[-1]]
    bounds = [natural.mean, natural.percentile(0.50), natural.percentile(0.95), natural.longest]
    is_bound = [natural.unseen_share > share for share in (0.0, 0.50, 0.05, 0.0)]
    cells = [f"{_AT_LEAST if bound else ''}{value:,.0f}" for value, bound in zip(bounds, is_bound, strict=True)]
    num_observed = natural.num_ended + natural.num_censored
    return [
        {"words": "trained on", "cells": [f"{len(trained):,}", "-", *(f"{value:,.0f}" for value in known)]},
        {"words": "natural (Kaplan-Meier)", "cells": [f"{num_observed:,}", f"{natural.num_censored:,}", *cells]},
    ]


def kinds(account: Account) -> list[str]:
    return list(dict.fromkeys(kind for lane in account.timeline.lanes() for kind in lane.seconds()))


def lanes(account: Account) -> list[dict[str, Any]]:
    columns = kinds(account)
    return [
        {
            "name": lane.name,
            "seconds": [_seconds(lane.seconds().get(kind)) for kind in columns],
            "idle": _seconds(lane.idle_s),
            "idle_s": f"{lane.idle_s:.6f}",
            "share": f"{lane.idle_ratio:.1%}",
        }
        for lane in account.timeline.lanes()
    ]


def phases(account: Account) -> list[dict[str, str]]:
    """Seconds of each part of the steps, added up. Parts that no step has are left out."""
    sums = {name: sum(step.get(name, 0.0) for step in account.parts.steps) for name in PHASES}
    whole = sum(sums.values())
    return [
        {"words": name, "seconds": _seconds(seconds), "share": f"{seconds / whole:.1%}"}
        for name, seconds in sums.items()
        if seconds
    ]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.2f} s"


def totals(account: Account) -> list[dict[str, Any]]:
    training = account.fates.totals(is_training=True)
    evaluation = account.fates.totals(is_training=False)
    num_tokens = training[OFFERED].num_tokens + evaluation[OFFERED].num_tokens
    words = {state: f"- {state}" for state in training} | {OFFERED: "offered for training"}
    rows = [{"words": words[state], "cells": _cells(total, num_tokens)} for state, total in training.items()]
    if evaluation[OFFERED].num_groups:
        rows.append({"words": "offered for evaluation", "cells": _cells(evaluation[OFFERED], num_tokens)})
    return rows


def _cells(total: FateTotals, num_tokens: int) -> list[str]:
    share = f"{total.num_tokens / num_tokens:.1%}" if num_tokens else "-"
    counts = (total.num_groups, total.num_prompts, total.num_responses, total.num_tokens, total.num_wasted)
    return [*(f"{count:,}" for count in counts), share]


def fate_rows(account: Account) -> tuple[list[list[Any]], str]:
    """One row per visit, training first. If there are too many, visits that were not trained come first."""
    fates = sorted(account.fates.groups.values(), key=lambda fate: fate.group.source != account.fates.train_source)
    note = ""
    if len(fates) > MAX_FATES:
        fates.sort(key=lambda fate: fate.state not in (DROPPED, DEFERRED, IN_PROGRESS))
        note = f"{len(fates) - MAX_FATES:,} more visits, all of them trained or evaluated, are in the journal only."
        fates = fates[:MAX_FATES]
    rows = [
        [
            str(fate.group),
            fate.state,
            fate.step,
            len(fate.responses),
            fate.num_tokens,
            fate.num_wasted,
            fate.num_deferred,
            fate.num_resumed,
            None if fate.mean_score is None else round(fate.mean_score, 3),
            fate.num_failed,
        ]
        for fate in fates
    ]
    return rows, note


def change_lines(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was changed when the run was continued, one line each."""
    return [f"from step {change['from_step']}: {_changed(each)}" for change in changes for each in change["changed"]]


def _changed(each: Mapping[str, Any]) -> str:
    if "source" in each:
        return f"the {each['source']} was edited"
    return str(Difference(name=each["setting"], value=each["value"], before=each["before"]))
