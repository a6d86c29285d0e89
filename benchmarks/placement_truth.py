"""Do the phases of jobs that share a node group overlap in real time, and is nobody refused who would have fitted?

    python benchmarks/placement_truth.py --json benchmarks/results/placement_truth.json

Jobs arrive one after the other at a cluster of 12 node groups, with the policy `spread`. One that gets no place at once
leaves again and counts as refused. One that gets a place stays for 100 to 500 of its steps. 3,000 jobs for each set of
periods, with arrivals from the first hour on, and from the 9th hour on.

The oracle works in seconds and knows neither slots nor how the planner decides. It writes down when every phase begins
and ends for the next 48 hours. Accepted: do any two phases of a group overlap? Refused: is there a shift, tried by the
second, at which no phase would have overlapped with one of the others, on a group with room for another job?

Where a job was planned *in step*, with the period of the others, the oracle plays it with that period, because this is
what it was promised: it waits a little each time. The same holds for a fraction of a second by which a period differs
from the slots.

`speed`: 5,000 jobs of mixed periods on 2,000 node groups, through a whole scheduler: CPU seconds in all, and of the
dearest event.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy

HOUR_S = 3600
AHEAD_S = 48 * HOUR_S
"""How far ahead the oracle looks."""
FAMILIES: dict[str, tuple[tuple[float, float], ...]] = {
    "equal": ((290, 58), (290, 84), (290, 112)),
    "multiples": ((145, 30), (290, 58), (580, 112)),
    "a common part (145 s)": ((290, 58), (435, 60), (580, 60)),
    "290, 285 and 590 s": ((290, 58), (285, 84), (590, 112)),
    "290, 430 and 700 s": ((290, 58), (430, 84), (700, 112)),
}
"""Seconds of a period, and of the phase in it. The last two sets have no common part that is long enough for two."""
JITTERED = "Table 2, 10 % jitter"
"""The rows of PlexRL's Table 2; each job's period and phase differ by up to 10 %, in fractions of a second."""
TABLE_2 = ((289.03, 57.5), (284.80, 83.54), (589.71, 111.39))
RULES = ClusterRules(policy=Policy.SPREAD, max_jobs_per_group=3, max_duty=0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What an accepted job was promised: phases at these times, every period."""

    begins_s: float
    """When its first period begins."""
    period_s: float
    phases: tuple[tuple[float, float], ...]
    """Seconds from the start of the period, and how long."""

    def busy(self, since_s: float) -> np.ndarray:
        """Start and end of every phase in the time that the oracle looks at, one row each."""
        first = np.floor((since_s - self.begins_s) / self.period_s) - 1
        number = int(AHEAD_S / self.period_s) + 4
        begins = self.begins_s + (first + np.arange(number)) * self.period_s
        return np.concatenate([np.stack([begins + at, begins + at + lasts], axis=1) for at, lasts in self.phases])


def overlap(one: Promise, other: Promise, since_s: float) -> bool:
    uses = np.concatenate([one.busy(since_s), other.busy(since_s)])
    uses = uses[np.argsort(uses[:, 0])]
    return bool(np.any(uses[:-1, 1] > uses[1:, 0] + 1e-6))


def has_room(trace: DemandTrace, residents: list[Promise], now: float) -> bool:
    """Whether some shift by whole seconds keeps all phases apart for the time that the oracle looks at."""
    num_shifts = int(trace.period_s)
    forbidden = np.zeros(num_shifts + 1, dtype=int)
    for resident in residents:
        busy = resident.busy(now)
        for segment in trace.segments:
            base = now + segment.offset_s + np.arange(int(AHEAD_S / trace.period_s)) * trace.period_s
            # Shift s is forbidden if base + s < end and begin < base + s + duration.
            low = np.floor(busy[None, :, 0] - segment.duration_s - base[:, None] + 1e-6) + 1
            high = np.ceil(busy[None, :, 1] - base[:, None] - 1e-6)
            low, high = np.clip(low, 0, num_shifts).astype(int), np.clip(high, 0, num_shifts).astype(int)
            is_any = high > low
            np.add.at(forbidden, low[is_any], 1)
            np.add.at(forbidden, high[is_any], -1)
    return bool(np.any(np.cumsum(forbidden)[:num_shifts] == 0))


@dataclass(slots=True)
class Audit:
    accepted: int = 0
    in_step: int = 0
    """Of these, jobs that were planned with the period of others."""
    moved: int = 0
    """Other jobs that made room for one that waited."""
    overlapping: int = 0
    """Places, at first or after a move, in which a phase overlaps with one of another job."""
    refused: int = 0
    wrongly_refused: int = 0
    without_room: int = 0
    """Refused because every group has its number of jobs or its duty. No oracle is asked."""
    running: dict[NodeGroupId, dict[JobId, Promise]] = field(default_factory=dict)
    traces: dict[JobId, DemandTrace] = field(default_factory=dict)
    ends: dict[JobId, float] = field(default_factory=dict)


def trace_of(period_s: float, phase_s: float) -> DemandTrace:
    segment = DemandSegment(offset_s=period_s - phase_s, duration_s=phase_s)
    return DemandTrace(period_s=period_s, segments=(segment,))


def drawn(family: str, rng: random.Random) -> DemandTrace:
    if family != JITTERED:
        return trace_of(*rng.choice(FAMILIES[family]))
    period_s, phase_s = rng.choice(TABLE_2)
    return trace_of(period_s * rng.uniform(0.9, 1.1), phase_s * rng.uniform(0.9, 1.1))


def audit(family: str, *, num_jobs: int, first_s: float, seed: int, num_groups: int = 12) -> Audit:
    rng, found = random.Random(f"{family} {first_s} {seed}"), Audit()
    scheduler = Scheduler(ev.ClusterStarted(rules=RULES, groups=node_groups(num_groups), rollout_devices=0))
    found.running = {group.id: {} for group in node_groups(num_groups)}
    now = first_s
    for number in range(num_jobs):
        now += float(rng.randrange(1, 3600))
        end_jobs(scheduler, found, now)
        submit(scheduler, found, JobId(f"job-{number}"), drawn(family, rng), rng.randrange(100, 501), now)
    return found


def submit(scheduler: Scheduler, found: Audit, job: JobId, trace: DemandTrace, steps: int, now: float) -> None:
    found.traces[job] = trace
    spec = JobSpec(id=job, train_devices=8, steps=steps, trace=trace)
    follow(scheduler, found, scheduler.handle(ev.JobSubmitted(job=spec), now=now), now)
    if scheduler.rooms.jobs.named(job).is_live:
        found.ends[job] = now + steps * trace.period_s
        return
    judge_refusal(found, trace, now)
    follow(scheduler, found, scheduler.handle(ev.JobEnded(job=job, reason="it got no place"), now=now), now)


def follow(scheduler: Scheduler, found: Audit, commands: Sequence[do.Command], now: float) -> None:
    """Judge every place that a job gets. Jobs that were alone may move, to make room for one that waits."""
    for command in commands:
        match command:
            case do.Place(job=job, group=group, shift_s=shift_s):
                found.accepted += 1
                found.in_step += seat(scheduler, found, group, job, shift_s, now)
            case do.Move(job=job, source=source, target=target, shift_s=shift_s):
                found.moved += 1
                del found.running[source][job]
                seat(scheduler, found, target, job, shift_s, now)


def seat(scheduler: Scheduler, found: Audit, group: NodeGroupId, job: JobId, shift_s: float, now: float) -> bool:
    """Judge the place that a job got. Return whether it was planned in step."""
    trace = found.traces[job]
    promise = promised(scheduler, job, shift_s, trace, now)
    found.overlapping += any(overlap(promise, other, now) for other in found.running[group].values())
    found.running[group][job] = promise
    return abs(promise.period_s - trace.period_s) > 1


def promised(scheduler: Scheduler, job: JobId, shift_s: float, trace: DemandTrace, now: float) -> Promise:
    """The phases of an accepted job. If it was planned with another period, its pauses are longer or shorter."""
    reservation = scheduler.rooms.groups.timetable.reservation_of(job)
    played: DemandTrace | None = trace
    if reservation is not None:
        footprint = reservation.placement.footprint
        played = trace.with_period(footprint.period * RULES.slot_s / footprint.repeats)
    assert played is not None
    phases = tuple((segment.offset_s, segment.duration_s) for segment in played.segments)
    return Promise(begins_s=now + shift_s, period_s=played.period_s, phases=phases)


def judge_refusal(found: Audit, trace: DemandTrace, now: float) -> None:
    groups = [
        list(jobs.values())
        for jobs in found.running.values()
        if len(jobs) < RULES.max_jobs_per_group and _duty(jobs) + trace.duty <= RULES.max_duty
    ]
    if not groups:
        found.without_room += 1
        return
    found.refused += 1
    found.wrongly_refused += any(has_room(trace, residents, now) for residents in groups)


def _duty(jobs: dict[JobId, Promise]) -> float:
    return sum(sum(lasts for _, lasts in promise.phases) / promise.period_s for promise in jobs.values())


def end_jobs(scheduler: Scheduler, found: Audit, now: float) -> None:
    for at, job in sorted((at, job) for job, at in found.ends.items() if at <= now):
        del found.ends[job]
        for jobs in found.running.values():
            jobs.pop(job, None)
        follow(scheduler, found, scheduler.handle(ev.JobEnded(job=job), now=at), at)


def node_groups(number: int) -> tuple[NodeGroup, ...]:
    return tuple(
        NodeGroup(id=NodeGroupId(f"g{index:04}"), nodes=(NodeId(f"n{index:04}"),), devices=8) for index in range(number)
    )


def speed(num_jobs: int, num_groups: int, seed: int) -> dict[str, Any]:
    """Jobs of all sets of periods in turn, a second apart; then every tenth of those that run ends."""
    rng, families = random.Random(seed), [*FAMILIES, JITTERED]
    scheduler = Scheduler(ev.ClusterStarted(rules=RULES, groups=node_groups(num_groups), rollout_devices=0))
    costs: dict[str, list[float]] = {"submitted": [], "ended": []}
    for number in range(num_jobs):
        trace = drawn(families[number % len(families)], rng)
        spec = JobSpec(id=JobId(f"job-{number}"), train_devices=8, steps=300, trace=trace)
        costs["submitted"].append(_cpu_s(scheduler, ev.JobSubmitted(job=spec), float(number)))
    num_placed = len(scheduler.rooms.jobs.running)
    for number, job in enumerate(list(scheduler.rooms.jobs.running)[::10]):
        costs["ended"].append(_cpu_s(scheduler, ev.JobEnded(job=job), float(num_jobs + number)))
    return {
        "jobs": num_jobs,
        "node_groups": num_groups,
        "placed": num_placed,
        "cpu_s": round(sum(map(sum, costs.values())), 2),
        **{f"dearest_{kind}_ms": round(1000 * max(spent), 1) for kind, spent in costs.items()},
    }


def _cpu_s(scheduler: Scheduler, event: ev.Event, now: float) -> float:
    began = time.process_time()
    scheduler.handle(event, now=now)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3_000, help="jobs for each set of periods")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    rows = []
    for family in (*FAMILIES, JITTERED):
        for when, first_s in (("from the 1st hour", 0.0), ("from the 9th hour", 9.0 * HOUR_S)):
            found = audit(family, num_jobs=options.jobs, first_s=first_s, seed=options.seed)
            counts = {
                name: getattr(found, name) for name in Audit.__slots__ if name not in ("running", "traces", "ends")
            }
            rows.append({"periods": family, "arrivals": when, **counts})
            print(rows[-1], file=sys.stderr, flush=True)
    result = {
        "machine": f"{platform.machine()}, one of {os.cpu_count()} cores, Python {platform.python_version()}",
        "jobs": options.jobs,
        "hours_ahead": AHEAD_S // HOUR_S,
        "rows": rows,
        "speed": speed(5_000, 2_000, options.seed),
    }
    print(json.dumps(result["speed"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
