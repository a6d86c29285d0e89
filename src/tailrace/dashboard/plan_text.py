"""A plan of shared node groups as text for a terminal, and as data for a file."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.sharing_forecast import Use
from tailrace.cluster.planning.sharing_plan import PlacedJob, SharedGroup, SharingPlan

BAR_CELLS = 48
SHOWN_PERIODS = 3
"""Periods of the slowest job of a group that are drawn."""
USED, SWITCHING, FREE = "#", "~", "."


def lines(plans: Sequence[SharingPlan], chosen: SharingPlan) -> list[str]:
    """The policies beside each other, then the groups of the chosen one."""
    jobs, groups = len(chosen.jobs), len(chosen.groups)
    text = [
        *_columns(policy_rows(plans, chosen)),
        "",
        f"{chosen.policy}: {_count(jobs, 'job')} on {_count(groups, 'node group')}",
    ]
    for group in chosen.groups:
        text += ["", *_group_lines(group)]
    if notes := plan_notes(chosen):
        text += ["", *(f"note: {note}" for note in notes)]
    for job in chosen.without_place:
        text += ["", f"{job.id} has no place: give more --groups, or a higher --max-duty, --max-jobs or --host-gb"]
    return text


def policy_rows(plans: Sequence[SharingPlan], chosen: SharingPlan) -> list[list[str]]:
    """A heading and one row per policy. A star marks the one that is shown in detail."""
    rows = [["policy", "jobs", "groups", "devices", "slowdown", "saved"]]
    for plan in plans:
        rows.append(
            [
                f"{plan.policy} *" if plan is chosen else str(plan.policy),
                str(len(plan.jobs)),
                str(len(plan.groups)),
                f"{plan.devices} of {plan.devices_alone}",
                _slowdown(plan.slowdowns),
                _saved(plan.savings),
            ]
        )
    return rows


def plan_notes(plan: SharingPlan) -> list[str]:
    """What the plan takes for granted, and what is not known about it."""
    notes = []
    if plan.switch_s == 0 and any(len(group.jobs) > 1 for group in plan.groups):
        notes.append("a group is taken to change from one job to another in no time: --switch-s says how long it takes")
    if plan.host_bytes is not None and (unknown := [job.id for job in _jobs(plan) if not job.state.total]):
        notes.append(f"no state is known of {', '.join(unknown)}: their trace needs state_gb, or they count as nothing")
    if any(len(placed.slowdowns) > 1 for placed in plan.jobs):
        notes.append("in brackets: the least and the most, if periods are as long as recorded ones")
    if len(plan.groups) > plan.fewest_groups and plan.num_orders > 1:
        less = range(plan.fewest_groups, len(plan.groups))
        enough = f"{less[0]} to {less[-1]}" if len(less) > 1 else str(less[0])
        notes.append(
            f"{plan.num_orders} orders of the jobs were tried; whether {enough} node groups could be enough is not"
            " known"
        )
    return notes


def _jobs(plan: SharingPlan) -> list[JobSpec]:
    return [*(placed.job for placed in plan.jobs), *plan.without_place]


def _slowdown(values: Sequence[float]) -> str:
    bounds = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{fmean(values):.3f}x{bounds}"


def _saved(values: Sequence[float]) -> str:
    bounds = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) > 1 else ""
    return f"{fmean(values):.1%}{bounds}"


def job_rows(group: SharedGroup) -> list[list[str]]:
    """A heading and one row per job of the group."""
    heading = ["job", "period", "duty", "planned", "shift", "slowdown", "saved"]
    return [heading, *(_job_row(placed) for placed in group.jobs)]


def _job_row(placed: PlacedJob) -> list[str]:
    trace = placed.job.trace
    assert trace is not None, "only jobs with a trace are placed"
    return [
        str(placed.job.id),
        f"{trace.period_s:,.1f} s",
        f"{trace.mean_duty:.1%}",
        f"{trace.duty:.1%}",
        f"{placed.shift_s:,.1f} s",
        _slowdown(placed.slowdowns),
        _saved(placed.savings),
    ]


def group_words(group: SharedGroup) -> str:
    return (
        f"{group.id}: {_count(group.devices, 'training device')}, in use {group.mean_duty:.1%} of the time,"
        f" {group.forecast.switches_per_step:.2f} switches per step"
    )


def shown_s(group: SharedGroup) -> float:
    """Seconds of the drawing: the first periods of the group's slowest job."""
    return SHOWN_PERIODS * max(placed.job.trace.period_s for placed in group.jobs if placed.job.trace is not None)


def _group_lines(group: SharedGroup) -> list[str]:
    end = shown_s(group)
    bars = [_bar([use for use in group.forecast.uses if use.index == index], end) for index in range(len(group.jobs))]
    table = _columns(job_rows(group))
    head = f"{table[0]}   the first {end:,.0f} s" if end >= 10 else f"{table[0]}   the first {end:.1f} s"
    return [group_words(group), head, *(f"{row}   {bar}" for row, bar in zip(table[1:], bars, strict=True))]


def _bar(uses: Sequence[Use], end: float) -> str:
    """One cell for each part of the time: what the job did with the group for most of it."""
    cell_s = end / BAR_CELLS
    return "".join(_cell(uses, number * cell_s, (number + 1) * cell_s) for number in range(BAR_CELLS))


def _cell(uses: Sequence[Use], start: float, end: float) -> str:
    used = sum(_overlap(use.start, use.end, start, end) for use in uses)
    switching = sum(_overlap(use.switch_at, use.start, start, end) for use in uses)
    free = end - start - used - switching
    return max(((used, USED), (switching, SWITCHING), (free, FREE)), key=lambda pair: pair[0])[1]


def _overlap(start: float, end: float, other_start: float, other_end: float) -> float:
    return max(min(end, other_end) - max(start, other_start), 0.0)


def to_dict(plan: SharingPlan) -> dict[str, Any]:
    return {
        "policy": str(plan.policy),
        "devices": plan.devices,
        "devices_alone": plan.devices_alone,
        "slowdown": plan.slowdown,
        "saving": plan.saving,
        "slowdowns": plan.slowdowns,
        "savings": plan.savings,
        "fewest_groups": plan.fewest_groups,
        "num_orders": plan.num_orders,
        "switch_s": plan.switch_s,
        "groups": [
            {
                "id": group.id,
                "devices": group.devices,
                "state_bytes": group.state_bytes,
                "duty": group.mean_duty,
                "planned_duty": group.duty,
                "switches_per_step": group.forecast.switches_per_step,
                "jobs": [
                    {
                        "id": placed.job.id,
                        "rollout_devices": placed.job.rollout_devices,
                        "shift_s": placed.shift_s,
                        "slowdown": placed.slowdown,
                        "saving": placed.saving,
                    }
                    for placed in group.jobs
                ],
            }
            for group in plan.groups
        ],
        "without_place": [job.id for job in plan.without_place],
    }


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    found = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        found.append("  ".join([row[0].ljust(widths[0]), *cells]))
    return found


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
