"""How fast are jobs placed on shared node groups?

    python benchmarks/cluster_placement.py --json benchmarks/results/cluster_placement.json

A backlog of jobs is placed one after the other with the `spread` ranking (at most three jobs and a duty of 0.8 per node
group), each with slot 0 as the earliest start. Phases are those of the 7B, 30B and 235B rows of PlexRL's Table 2 in
equal parts; the period and the duration of a job differ from its row by up to 10 %, drawn independently. Each job is
one decision: a search over all node groups and, if one was found, a reservation. Afterwards jobs end and others take
their place, so that decisions are also counted in a full cluster. Seconds are CPU seconds of the one process. Memory is
what the timetable and its reservations allocate (tracemalloc); they are made again for that, because tracing is slow.

The same jobs are also submitted to a whole scheduler, up to 1,000 of them. It does more for each: it looks at waits and
bytes, plans jobs in step that do not fit otherwise, and moves lone jobs to make room.

`waiting`: what an event costs while many jobs wait, with the policy `spread-backfill`, which looks at all of them. 500,
1,000 and 2,000 jobs of different demand are submitted to 100 groups, a second apart; then 40 of those that run end, one
by one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.ranking import SearchCounts, best_place
from tailrace.cluster.planning.timetable import Reservation, Timetable
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy

ROWS = {
    "7B": (289.03, 9.66 + 38.08 + 9.76),
    "30B": (284.80, 19.62 + 56.35 + 7.57),
    "235B": (589.71, 20.11 + 82.39 + 8.89),
}
"""Seconds of a cycle, and of log-prob, update and sync together: the phase that uses the node group."""
JITTER = 0.1
RULES = ClusterRules(policy=Policy.SPREAD, max_jobs_per_group=3, max_duty=0.8)
SIZES = ((1_000, 400), (10_000, 4_000))
"""Jobs and node groups."""
MOST_SUBMITTED = 1_000


def traces(num_jobs: int, seed: int) -> list[DemandTrace]:
    rng, rows = random.Random(seed), list(ROWS.values())
    found = []
    for index in range(num_jobs):
        cycle_s, phase_s = rows[index % len(rows)]
        period_s = cycle_s * rng.uniform(1 - JITTER, 1 + JITTER)
        duration_s = phase_s * rng.uniform(1 - JITTER, 1 + JITTER)
        segments = (DemandSegment(offset_s=0.0, duration_s=duration_s),)
        found.append(DemandTrace(period_s=period_s, segments=segments))
    rng.shuffle(found)
    return found


def footprint_of(trace: DemandTrace) -> Footprint:
    return Footprint.of(trace, RULES.slot_s)


def node_groups(num_groups: int) -> tuple[NodeGroup, ...]:
    return tuple(
        NodeGroup(id=NodeGroupId(f"g{index:04}"), nodes=(NodeId(f"n{index:04}"),), devices=8)
        for index in range(num_groups)
    )


class Cluster:
    def __init__(self, num_groups: int) -> None:
        groups = node_groups(num_groups)
        self.timetable = Timetable(groups)
        self.groups = [group.id for group in groups]
        self.running: list[Reservation] = []
        self.num_decisions = 0
        self.counts = SearchCounts()

    def place(self, footprint: Footprint, start_slot: int) -> bool:
        found = best_place(self.timetable, footprint, self.groups, start_slot, RULES, counts=self.counts)
        self.num_decisions += 1
        if found is not None:
            job = JobId(f"job-{self.num_decisions}")
            self.running.append(self.timetable.reserve(job, found.group, footprint, found.placement.start))
        return found is not None


def place_all(num_jobs: int, num_groups: int, seed: int) -> dict[str, Any]:
    jobs, cluster = [footprint_of(trace) for trace in traces(num_jobs, seed)], Cluster(num_groups)
    began = time.process_time()
    for footprint in jobs:
        cluster.place(footprint, 0)
    seconds = time.process_time() - began
    placed, counts = len(cluster.running), cluster.counts
    result = {
        "jobs": num_jobs,
        "node_groups": num_groups,
        "cpu_s": round(seconds, 2),
        "decisions_per_cpu_s": round(num_jobs / seconds),
        "placed": placed,
        "placements_per_cpu_s": round(placed / seconds),
        "pairs": counts.total,
        "share_of_pairs_not_searched": round((counts.total - counts.no_fit - counts.compared) / counts.total, 4),
        "share_of_pairs": {name: round(count / counts.total, 4) for name, count in asdict(counts).items()},
        "full_cluster_decisions_per_cpu_s": turn_over(cluster, jobs, seed),
    }
    cluster.timetable.check()
    result["timetable_mib"] = round(memory_mib(num_groups, cluster.running), 1)
    return result


def submit_all(num_jobs: int, num_groups: int, seed: int) -> dict[str, Any]:
    """The same jobs through a whole scheduler."""
    scheduler = Scheduler(ev.ClusterStarted(rules=RULES, groups=node_groups(num_groups), rollout_devices=num_jobs))
    began = time.process_time()
    for number, trace in enumerate(traces(num_jobs, seed)):
        spec = JobSpec(id=JobId(f"job-{number}"), train_devices=8, rollout_devices=1, steps=100, trace=trace)
        scheduler.handle(ev.JobSubmitted(job=spec), now=0.0)
    seconds = time.process_time() - began
    return {"scheduler_cpu_s": round(seconds, 2), "scheduler_admitted": len(scheduler.rooms.jobs.running)}


def events_with_many_waiting(num_jobs: int, seed: int) -> dict[str, Any]:
    rules = replace(RULES, policy=Policy.SPREAD_BACKFILL)
    scheduler = Scheduler(ev.ClusterStarted(rules=rules, groups=node_groups(100), rollout_devices=num_jobs))
    submits = []
    for number, trace in enumerate(traces(num_jobs, seed)):
        steps = 100 + number % 7 * 300
        spec = JobSpec(id=JobId(f"job-{number}"), train_devices=8, rollout_devices=1, steps=steps, trace=trace)
        submits.append(_cpu_s(scheduler, ev.JobSubmitted(job=spec), float(number)))
    num_waiting = len(scheduler.rooms.jobs.queue)
    names = list(scheduler.rooms.jobs.running)[:40]
    ends = [_cpu_s(scheduler, ev.JobEnded(job=name), 2.0 * num_jobs + 100 * at) for at, name in enumerate(names)]
    return {
        "waiting": num_waiting,
        "submits_cpu_s": round(sum(submits), 2),
        "median_of_last_50_submits_ms": round(1000 * median(submits[-50:]), 1),
        "longest_submit_ms": round(1000 * max(submits), 1),
        "median_end_ms": round(1000 * median(ends), 1),
        "longest_end_ms": round(1000 * max(ends), 1),
    }


def _cpu_s(scheduler: Scheduler, event: ev.Event, now: float) -> float:
    began = time.process_time()
    scheduler.handle(event, now=now)
    return time.process_time() - began


def turn_over(cluster: Cluster, jobs: list[Footprint], seed: int) -> int:
    """Decisions per CPU second while random jobs end and other ones are placed at a random start."""
    rng = random.Random(seed)
    before, began = cluster.num_decisions, time.process_time()
    for _ in range(len(jobs) // 10):
        index = rng.randrange(len(cluster.running))
        cluster.running[index], cluster.running[-1] = cluster.running[-1], cluster.running[index]
        cluster.timetable.release(cluster.running.pop())
        cluster.place(rng.choice(jobs), rng.randrange(10**6))
    return round((cluster.num_decisions - before) / (time.process_time() - began))


def memory_mib(num_groups: int, reservations: list[Reservation]) -> float:
    """Memory of a timetable in which the same reservations are made again."""
    tracemalloc.start()
    cluster = Cluster(num_groups)
    for made in reservations:
        placement = made.placement
        cluster.running.append(cluster.timetable.reserve(made.job, made.group, placement.footprint, placement.start))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--small", action="store_true", help="only 1,000 jobs on 400 node groups")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    waiting = [events_with_many_waiting(num_jobs, options.seed) for num_jobs in (500, 1000, 2000)]
    print(json.dumps({"events_with_many_waiting": waiting}, indent=1), flush=True)
    rows = []
    for num_jobs, num_groups in SIZES[:1] if options.small else SIZES:
        row = place_all(num_jobs, num_groups, options.seed)
        if num_jobs <= MOST_SUBMITTED:
            row |= submit_all(num_jobs, num_groups, options.seed)
        rows.append(row)
        print(json.dumps(row, indent=1), flush=True)
    if options.json:
        machine = f"{platform.machine()}, one of {os.cpu_count()} cores, Python {platform.python_version()}"
        result = {"machine": machine, "jitter": JITTER, "events_with_many_waiting": waiting, "sizes": rows}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
