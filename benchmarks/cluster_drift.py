"""Does the scheduler learn that a job's period has changed, how soon, and what does it help?

    python benchmarks/cluster_drift.py --json benchmarks/results/cluster_drift.json

Six jobs of the 7B row of PlexRL's Table 2 (a step of 289.03 s, 57.5 s of it on the node group) share three node groups,
120 steps each. After 20 steps the first one changes:

    grows by 1 %          each step takes 1 % longer than the one before, all its parts
    jumps by 30 %         all its parts take 1.3 times as long from then on
    halves                all its parts take half as long
    takes twice as long   all its parts
    longer phases         training takes twice as long, rollout as before

    stays                 as planned

Three more jobs like the others come later, one each 1,000 s from 15,000 s on, about 30 periods after the change. A
group takes three jobs.

`learned_after`: complete periods after the change until the plan's period and phases are within 15 % of the real ones,
one figure per seed. `plan_off`: by how much the period of the plan differs from the real one, mean over the periods
after the change. `forecast_error`: of the seconds that the job still needs, as the scheduler says, beside what it then
took: at the change, 10 and 30 periods after it. `wait_s`: mean wait of a phase after the change, of the job itself, of
the other five, and of those that came later. `none`: the same scheduler, told that nothing counts as drift.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec, StateBytes
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy
from tailrace.sim.cluster.driver import Driver
from tailrace.sim.cluster.group_memory import Bandwidths
from tailrace.sim.cluster.job_model import JobPlan
from tailrace.sim.cluster.step_times import Overlap, StepTimes, demand_trace, draw_steps

ALONE = StepTimes(rollout_s=231.53, operations_s=(9.66, 38.08, 9.76))
NUM_STEPS, CHANGES_AT = 120, 20
LOOKS = (0, 10, 30)
NEAR = 0.15
LATER_S, EVERY_S = 15_000.0, 1_000.0
JITTERS = (0.0, 0.05, 0.1)
NO_DRIFT = 1e9
"""A share of the period by which nothing is ever off."""

Change = Callable[[StepTimes, int], StepTimes]


def _times(rollout: float, group: float) -> Change:
    return lambda step, _: _scaled(step, rollout, group)


def _scaled(step: StepTimes, rollout: float, group: float) -> StepTimes:
    return StepTimes(rollout_s=step.rollout_s * rollout, operations_s=tuple(each * group for each in step.operations_s))


FIRST_JOBS = tuple(JobId(f"job-{number}") for number in range(6))
CHANGES: dict[str, Change] = {
    "grows by 1 %": lambda step, number: _scaled(step, 1.01**number, 1.01**number),
    "jumps by 30 %": _times(1.3, 1.3),
    "halves": _times(0.5, 0.5),
    "takes twice as long": _times(2.0, 2.0),
    "longer phases": _times(1.0, 2.0),
    "stays": _times(1.0, 1.0),
}


@dataclass
class Watched:
    """What is written down about the job that changes, after each of its phases."""

    job: JobId
    periods: list[float] = field(default_factory=list)
    plans: list[DemandTrace] = field(default_factory=list)
    forecasts_s: list[float] = field(default_factory=list)
    """When the job will end, in seconds."""
    num_moves: int = 0
    ended: float = 0.0
    waits_s: dict[str, list[float]] = field(default_factory=lambda: {"itself": [], "others": [], "later": []})
    """Of phases after the change, until the job ends."""

    def whose(self, job: JobId) -> str:
        if job == self.job:
            return "itself"
        return "others" if job in FIRST_JOBS else "later"


def plans(change: Change, jitter: float, seed: int) -> list[JobPlan]:
    found = []
    for number in range(9):
        expected = [change(ALONE, max(0, step - CHANGES_AT + 1)) if number == 0 and step >= CHANGES_AT else ALONE
                    for step in range(NUM_STEPS)]  # fmt: skip
        steps = draw_steps(expected, NUM_STEPS, draw=Random(seed * 100 + number), jitter=jitter)
        spec = JobSpec(
            id=JobId(f"job-{number}"), train_devices=8, steps=NUM_STEPS, trace=demand_trace([ALONE], Overlap.SERIAL),
            state=StateBytes(weights=100),
        )  # fmt: skip
        submitted = 0.0 if spec.id in FIRST_JOBS else LATER_S + EVERY_S * (number - len(FIRST_JOBS))
        plan = JobPlan(spec=spec, model="7b", overlap=Overlap.SERIAL, cycle=(ALONE,), steps=steps, submitted=submitted)
        found.append(plan)
    return found


def play(change: Change, *, jitter: float, seed: int, drift: float) -> Watched:
    rules = ClusterRules(policy=Policy.SPREAD, max_jobs_per_group=3, drift=drift)
    groups = tuple(NodeGroup(id=NodeGroupId(f"g{n}"), nodes=(NodeId(f"n{n}"),), devices=8) for n in range(3))
    first = ev.ClusterStarted(rules=rules, groups=groups)
    schedulers: list[Scheduler] = []
    watched, asked = Watched(JobId("job-0")), dict[JobId, float]()

    def make(started: ev.ClusterStarted) -> Scheduler:
        schedulers.append(Scheduler(started))
        return schedulers[0]

    def record(now: float, event: ev.Event, commands: Sequence[do.Command]) -> None:
        schedulers[0].check()
        job = schedulers[0].rooms.jobs.find(watched.job)
        if isinstance(event, ev.PhaseAsked):
            asked[event.job] = now
        if isinstance(event, ev.JobEnded) and event.job == watched.job:
            watched.ended = now
        for command in commands:
            watched.num_moves += isinstance(command, do.Move)
            if isinstance(command, do.GrantLease) and len(watched.plans) > CHANGES_AT and not watched.ended:
                watched.waits_s[watched.whose(command.job)].append(now - asked[command.job])
        if isinstance(event, ev.PhaseEnded) and event.job == watched.job and job is not None:
            assert job.trace is not None
            watched.plans.append(job.trace)
            watched.forecasts_s.append(job.ends_at(now) or 0.0)
            watched.periods.append(now)

    driver = Driver(
        first, make, plans(change, jitter, seed), bandwidths=Bandwidths(device=100.0, disk=100.0), record=record
    )
    driver.run()
    return watched


def learned_after(watched: Watched, change: Change) -> int | None:
    """Periods after the change; None: never."""
    for number, plan in enumerate(watched.plans[CHANGES_AT:], 1):
        real = demand_trace([change(ALONE, number)], Overlap.SERIAL)
        if abs(plan.period_s / real.period_s - 1) <= NEAR and abs(plan.busy_s / real.busy_s - 1) <= NEAR:
            return number
    return None


def plan_off(watched: Watched, change: Change) -> float:
    real_s = [demand_trace([change(ALONE, n)], Overlap.SERIAL).period_s for n in range(1, NUM_STEPS - CHANGES_AT)]
    plans = watched.plans[CHANGES_AT:]
    return fmean(abs(plan.period_s / period_s - 1) for plan, period_s in zip(plans, real_s, strict=False))


def forecast_error(watched: Watched, look: int) -> float:
    at = CHANGES_AT + look
    return abs(watched.forecasts_s[at] - watched.ended) / (watched.ended - watched.periods[at])


def figures(name: str, jitter: float, seeds: int) -> dict[str, object]:
    change, rows = CHANGES[name], {}
    for label, drift in (("learns", ClusterRules().drift), ("none", NO_DRIFT)):
        found = [play(change, jitter=jitter, seed=seed, drift=drift) for seed in range(seeds if jitter else 1)]
        rows[label] = {
            "learned_after": [learned_after(watched, change) for watched in found],
            "plan_off": round(fmean(plan_off(watched, change) for watched in found), 3),
            "forecast_error": [round(fmean(forecast_error(each, look) for each in found), 3) for look in LOOKS],
            "wait_s": {
                whose: round(fmean(wait for watched in found for wait in watched.waits_s[whose]), 1)
                for whose in ("itself", "others", "later")
            },
            "moves": sum(watched.num_moves for watched in found),
        }
    return {"change": name, "jitter": jitter, **rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in CHANGES:
        for jitter in JITTERS:
            rows.append(figures(name, jitter, options.seeds))
            print(json.dumps(rows[-1]))
    if options.json is not None:
        options.json.write_text(json.dumps({"steps": NUM_STEPS, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
