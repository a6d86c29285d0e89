"""The page of `tailrace cluster plan`: what each policy would need, and the groups of the chosen one over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailrace.cluster.planning.sharing_plan import SharedGroup, SharingPlan
from tailrace.dashboard import cluster_charts as charts
from tailrace.dashboard import plan_text
from tailrace.dashboard.cluster_charts import Box
from tailrace.dashboard.cluster_page import ZOOM, PageSection, write
from tailrace.dashboard.figures import Chart

TRAIN, SWITCH = "training phase", "switch"


def write_plan_page(plans: Sequence[SharingPlan], chosen: SharingPlan, path: Path) -> Path:
    """Write the page and return its path."""
    rows = plan_text.policy_rows(plans, chosen)
    policies = [_POLICIES, *(f"Note: {note}." for note in plan_text.plan_notes(chosen))]
    notes = [ZOOM, *charts.left_out(len(chosen.groups))]
    sections = [
        PageSection(id="policies", heading="What each policy would need", tables=[rows], notes=policies),
        PageSection(id="groups", heading="The first periods", charts=["groups"], notes=notes),
        *(
            PageSection(id=f"group-{number}", heading=plan_text.group_words(group), tables=[plan_text.job_rows(group)])
            for number, group in enumerate(chosen.groups)
        ),
    ]
    if chosen.without_place:
        names = ", ".join(job.id for job in chosen.without_place)
        sections.append(PageSection(id="without-place", heading="Without a place", notes=[names]))
    tiles = [
        (str(len(chosen.groups)), f"node groups for {len(chosen.jobs)} jobs"),
        (f"{chosen.devices} of {chosen.devices_alone}", "devices, of those without sharing"),
        (f"{chosen.slowdown:.3f}x", "mean slowdown, forecast"),
        (f"{chosen.saving:.1%}", "device-hours per step saved"),
    ]
    lead = f"Plan for {len(chosen.jobs) + len(chosen.without_place)} jobs, policy {chosen.policy}."
    drawings = {"groups": _drawing(chosen)}
    return write(path, title="Sharing node groups", lead=lead, sections=sections, drawings=drawings, tiles=tiles)


_POLICIES = (
    "isolated: a group for each job. pack: the fullest group with room for the job's duty; phases wait for each other."
    " spread: a group in whose free time all phases fit. Devices: training and rollout, of those without sharing. The"
    " slowdown is a forecast. The star marks the policy that is shown below."
)


def _drawing(plan: SharingPlan) -> Chart:
    end = max((plan_text.shown_s(group) for group in plan.groups), default=1.0)
    boxes = [box for group in plan.groups for box in _boxes(group, end)]
    colours = charts.job_colours([str(placed.job.id) for placed in plan.jobs])
    names = {str(group.id): f"{group.id}\n{group.mean_duty:.0%} in use" for group in plan.groups}
    return charts.gantt(boxes, names, colours, title="Node groups", window=(0.0, end))


def _boxes(group: SharedGroup, end: float) -> list[Box]:
    found = []
    for use in group.forecast.uses:
        if use.switch_at >= end:
            break
        job = str(group.jobs[use.index].job.id)
        if use.start > use.switch_at:
            found.append(Box(group=str(group.id), job=job, kind=SWITCH, start=use.switch_at, end=use.start))
        found.append(Box(group=str(group.id), job=job, kind=TRAIN, start=use.start, end=use.end))
    return found
