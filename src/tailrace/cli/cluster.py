"""Plan how jobs share accelerators: `tailrace cluster plan TRACES...`, `tailrace cluster trace RUN --json FILE`.

TRACES are files that `cluster trace` wrote, or run directories. A trace that is given twice stands for two jobs. Exit
status: 0 planned or written, 1 planned, but a job has no place, 2 not planned.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tailrace.cluster.ids import JobId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.planning.sharing_plan import SharingPlan, plan_sharing
from tailrace.cluster.settings import ClusterRules, Policy
from tailrace.dashboard import plan_text
from tailrace.observe.demand import job_demand
from tailrace.observe.demand.job_demand import JobDemand
from tailrace.observe.demand.run_demand import demand_of_run

_POLICIES = (Policy.ISOLATED, Policy.PACK, Policy.SPREAD)


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _configure_plan(actions.add_parser("plan", help="which jobs fit together on how many devices", allow_abbrev=False))
    _configure_trace(actions.add_parser("trace", help="the demand of a run as a file", allow_abbrev=False))


def _configure_plan(parser: argparse.ArgumentParser) -> None:
    rules = ClusterRules()
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="a trace file or a run directory")
    parser.add_argument("--policy", choices=[str(each) for each in _POLICIES], help="default: what saves most")
    parser.add_argument("--groups", type=int, metavar="N", help="at most N node groups of each size")
    parser.add_argument("--max-duty", type=float, default=rules.max_duty, metavar="SHARE",
                        help=f"of all jobs of a group together (default: {rules.max_duty:g})")  # fmt: skip
    parser.add_argument("--max-jobs", type=int, default=rules.max_jobs_per_group, metavar="N",
                        help=f"jobs of a group (default: {rules.max_jobs_per_group})")  # fmt: skip
    parser.add_argument("--switch-s", type=float, default=0.0, metavar="SECONDS",
                        help="to move one job's state out of a group and another's in (default: 0)")  # fmt: skip
    parser.add_argument("--host-gb", type=float, metavar="GB",
                        help="host memory of a group, for the states of its jobs (default: not checked)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan there as well")
    parser.add_argument("--html", type=Path, metavar="FILE", help="draw the plan there as well")


def _configure_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: print it")
    parser.add_argument("--train-devices", type=int, metavar="N", help="of a node group for this job (default: 1)")
    parser.add_argument("--rollout-devices", type=int, metavar="N", help="default: one for each rollout instance")


def run(options: argparse.Namespace) -> int:
    try:
        return _plan(options) if options.action == "plan" else _trace(options)
    except ModuleNotFoundError as error:
        if error.name not in ("bokeh", "jinja2", "markupsafe"):
            raise
        print(f"tailrace: a page needs {error.name}: pip install 'tailrace[report]'", file=sys.stderr)
    except ValueError as error:
        print(f"tailrace: {error}", file=sys.stderr)
    except OSError as error:
        print(f"tailrace: a file cannot be written: {error}", file=sys.stderr)
    return 2


def _trace(options: argparse.Namespace) -> int:
    for name, value, least in (("train", options.train_devices, 1), ("rollout", options.rollout_devices, 0)):
        if value is not None and value < least:
            raise ValueError(f"--{name}-devices must be at least {least}, got {value}")
    if options.run.is_file():
        raise ValueError(f"{options.run} is no run directory")
    demand = demand_of_run(options.run).with_devices(options.train_devices, options.rollout_devices)
    if options.json is None:
        print(json.dumps(demand.to_dict(), indent=2))
        return 0
    job_demand.write(demand, options.json)
    trace = demand.trace
    print(
        f"trace: {options.json} (period {trace.period_s:,.2f} s, steps in it: {trace.steps},"
        f" duty {trace.mean_duty:.1%}, planned {trace.duty:.1%}; made from {len(demand.run)} steps)"
    )
    return 0


def _plan(options: argparse.Namespace) -> int:
    _check(options)
    demands = _named([_read(path) for path in options.traces])
    plans = [_plan_for(policy, demands, options) for policy in _POLICIES]
    chosen = _choose(plans, options.policy)
    print("\n".join(plan_text.lines(plans, chosen)))
    if options.json is not None:
        data = [plan_text.to_dict(plan) | {"is_chosen": plan is chosen} for plan in plans]
        options.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    if options.html is not None:
        from tailrace.dashboard.plan_page import write_plan_page

        print(f"\npage: {write_plan_page(plans, chosen, options.html)}")
    return 1 if chosen.without_place else 0


def _check(options: argparse.Namespace) -> None:
    if options.groups is not None and options.groups < 1:
        raise ValueError(f"--groups must be at least 1, got {options.groups}")
    if options.max_jobs < 1:
        raise ValueError(f"--max-jobs must be at least 1, got {options.max_jobs}")
    if not 0 < options.max_duty <= 1:
        raise ValueError(f"--max-duty must be above 0 and at most 1, got {options.max_duty:g}")
    if options.host_gb is not None and not 0 < options.host_gb < math.inf:
        raise ValueError(f"--host-gb must be a number of gigabytes above 0, got {options.host_gb:g}")
    if not 0 <= options.switch_s < math.inf:
        raise ValueError(f"--switch-s must be a number of seconds from 0 on, got {options.switch_s:g}")


def _read(path: Path) -> JobDemand:
    return demand_of_run(path) if path.is_dir() else job_demand.read(path)


def _named(demands: Sequence[JobDemand]) -> list[JobDemand]:
    """One for each job. Those of one name are numbered."""
    found: dict[str, JobDemand] = {}
    for demand in demands:
        name, number = demand.name, 2
        while name in found:
            name, number = f"{demand.name}-{number}", number + 1
        found[name] = replace(demand, name=name)
    return [*found.values()]


def _job(demand: JobDemand) -> JobSpec:
    return JobSpec(
        id=JobId(demand.name),
        train_devices=demand.train_devices,
        rollout_devices=demand.rollout_devices,
        steps=max(len(demand.run), 1),
        state=demand.state,
        trace=demand.trace,
    )


def _plan_for(policy: Policy, demands: Sequence[JobDemand], options: argparse.Namespace) -> SharingPlan:
    rules = ClusterRules(policy=policy, max_duty=options.max_duty, max_jobs_per_group=options.max_jobs)
    return plan_sharing(
        [_job(demand) for demand in demands],
        rules,
        max_groups=options.groups,
        switch_s=options.switch_s,
        host_bytes=None if options.host_gb is None else round(options.host_gb * job_demand.GB),
        recorded={JobId(demand.name): demand.periods() for demand in demands},
    )


def _choose(plans: Sequence[SharingPlan], policy: str | None) -> SharingPlan:
    """The named policy's plan, or the one that leaves the fewest jobs without a place and then saves most."""
    if policy is not None:
        return next(plan for plan in plans if plan.policy == policy)
    return min(plans, key=lambda plan: (len(plan.without_place), -plan.saving))
