"""How long does one plan take, for many instances and responses?

    python benchmarks/planning.py --json benchmarks/results/planning.json

A plan is all three strategies, throughput-oriented, on one state of the coordinator: synchronize, migrate, route, each
with the view it looks at. ``with commands`` is the whole pass: the rules that ask the strategies, change the state and
make the commands. States, each with bound 3:

* ``all wait``: every response waits with some tokens, and every instance is idle and has just pulled
* ``start``: every response is new and every instance idle, at the same version
* ``steady``: nine in ten run, on instances at three versions; the others wait, and the older ones may not take them
* ``published``: three batches run on instances that are behind, and a fourth waits that only the version just published
  may begin: many instances are tried, and many of them pull

Exit status 1: either takes longer than the limit.

Seconds are CPU seconds of the one process, so that a busy machine does not blur the figure; the median over the plans.
The garbage collector is on. What making the states left behind is collected before each plan, or a full collection of
it would fall on some of them by chance.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.core.commands import Command, Submit
from tailrace.core.coordination import Coordination, Strategy
from tailrace.core.costs import CostModel
from tailrace.core.dispatching import dispatch
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.ids import GroupId, Version
from tailrace.core.moves import begin, move
from tailrace.core.schedule import Leftovers, Schedule
from tailrace.core.state import State
from tailrace.core.steering import migrate, open_plan, synchronize
from tailrace.core.trajectory import Trajectory, TrajectoryPhase
from tailrace.core.views import fleet_view
from tailrace.policies.strategies import policies_of

SIZES = {(32, 2_048): 0.010, (256, 16_384): 0.100}
"""(instances, responses): CPU seconds a plan may take, with its commands too."""
GROUP_SIZE, BOUND = 16, 3
VERSIONS = (4, 5, 6)
NOW = 100.0


def schedule_of(num_instances: int, num_responses: int, *, num_batches: int) -> Schedule:
    throughput = Strategy.THROUGHPUT
    return Schedule(
        train_source="train",
        batch_size=num_responses // GROUP_SIZE // num_batches,
        group_size=GROUP_SIZE,
        max_steps=100,
        leftovers=Leftovers.KEEP,
        max_staleness=BOUND,
        num_instances=num_instances,
        max_in_flight=256,
        coordination=Coordination(
            routing=throughput,
            synchronization=throughput,
            migration=throughput,
            # Qwen3-30B-A3B on H20, as the paper has it, with room for about forty responses of full length.
            costs=CostModel(k1=7.28e-8, k2=1.72e-3, k3=1.25e-4, k4=1.07e-2),
            kv_tokens=800_000,
            max_running=256,
            prompt_length=500,
        ),
    )


def blank(schedule: Schedule, num_responses: int) -> State:
    """Idle instances of the published version, and groups that have begun nothing."""
    state = State.initial(schedule)
    state.version = state.published = Version(max(VERSIONS))
    state.ledger.current = state.version
    state.ledger.__post_init__()
    for instance in state.instances.values():
        instance.phase, instance.version = InstancePhase.READY, state.published
    for prompt in range(num_responses // GROUP_SIZE):
        begin(state, schedule, GroupId("train", 0, prompt), "")
    return state


def started(schedule: Schedule, num_responses: int, rng: random.Random) -> State:
    """Every response has tokens of the oldest version, and waits."""
    state = blank(schedule, num_responses)
    for group in state.groups.values():
        group.version = Version(min(VERSIONS))
        state.ledger.reserve(group.id, group.version)
        for trajectory in group.members.values():
            trajectory.grow(int(min(20_000, rng.lognormvariate(8.0, 0.8))), group.version)
    return state


def steady(schedule: Schedule, num_responses: int, rng: random.Random) -> State:
    state = started(schedule, num_responses, rng)
    numbers = list(state.instances)
    for number, instance in state.instances.items():
        instance.version = Version(VERSIONS[number % len(VERSIONS)])
    for group in state.groups.values():
        for trajectory in group.members.values():
            if rng.random() < 0.9:
                _run(state, trajectory, state.instances[rng.choice(numbers)])
    # What waits has gone on with a newer version since: the older instances may not take it.
    for group in state.pending:
        for trajectory in state.groups[group].members.values():
            if trajectory.phase is TrajectoryPhase.PENDING:
                trajectory.grow(trajectory.length + 10, Version(max(VERSIONS)))
    return state


def published(schedule: Schedule, num_responses: int, rng: random.Random) -> State:
    state = blank(schedule, num_responses)
    behind = VERSIONS[:-1]
    for number, instance in state.instances.items():
        instance.version = Version(behind[number % len(behind)])
    for index, group in enumerate(list(state.groups.values())[: BOUND * schedule.batch_size]):
        group.version = Version(min(behind) - 1 + index // schedule.batch_size)
        state.ledger.reserve(group.id, group.version)
        for trajectory in group.members.values():
            wrote = Version(max(group.version, min(behind)))
            trajectory.grow(int(min(20_000, rng.lognormvariate(7.0, 0.8))), wrote)
            _run(state, trajectory, rng.choice([i for i in state.instances.values() if i.version >= wrote]))
    return state


def _run(state: State, trajectory: Trajectory, instance: Instance) -> None:
    move(state, trajectory, TrajectoryPhase.RUNNING, 0.0)
    trajectory.instance = instance.id
    instance.running[trajectory.id] = None
    instance.num_tokens += trajectory.length


STATES: dict[str, tuple[Callable[[Schedule, int, random.Random], State], int]] = {
    "all wait": (started, 2),
    "start": (lambda schedule, count, rng: blank(schedule, count), 2),
    "steady": (steady, 2),
    "published": (published, BOUND + 1),
}
"""How a state is made, and into how many batches its responses are divided."""


def plan(state: State, schedule: Schedule) -> None:
    policies = policies_of(schedule)
    list(policies.synchronization.choose(fleet_view(state, schedule, NOW)))
    list(policies.migration.choose(fleet_view(state, schedule, NOW)))
    list(policies.routing.route(fleet_view(state, schedule, NOW)))


def carry_out(state: State, schedule: Schedule) -> list[Command]:
    policies = policies_of(schedule)
    return [c for rule in (open_plan, synchronize, migrate, dispatch) for c in rule(state, schedule, policies, NOW)]


def cpu_s(action: Callable[[State, Schedule], Any], state: State, schedule: Schedule) -> tuple[float, Any]:
    gc.collect()
    begin_s = time.process_time()
    result = action(state, schedule)
    return time.process_time() - begin_s, result


def measure(num_instances: int, num_responses: int, name: str, repeats: int) -> dict[str, Any]:
    make, num_batches = STATES[name]
    schedule = schedule_of(num_instances, num_responses, num_batches=num_batches)
    plans, rules, num_routed, num_called = [], [], 0, 0
    for repeat in range(repeats):
        state = make(schedule, num_responses, random.Random(repeat))
        plans.append(cpu_s(plan, state, schedule)[0])
        taken, commands = cpu_s(carry_out, state, schedule)
        rules.append(taken)
        num_routed = sum(len(command.dispatches) for command in commands if isinstance(command, Submit))
        num_called = sum(instance.is_called for instance in state.instances.values())
    limit, chosen_s, whole_s = SIZES[num_instances, num_responses], statistics.median(plans), statistics.median(rules)
    return {
        "instances": num_instances,
        "responses": num_responses,
        "state": name,
        "plan_cpu_ms": round(1e3 * chosen_s, 2),
        "of_each_plan": [round(1e3 * seconds, 2) for seconds in plans],
        "with_commands_cpu_ms": round(1e3 * whole_s, 2),
        "of_each_with_commands": [round(1e3 * seconds, 2) for seconds in rules],
        "limit_ms": 1e3 * limit,
        "holds": max(chosen_s, whole_s) < limit,
        "num_routed": num_routed,
        "num_called": num_called,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rows = [measure(*size, name, options.repeats) for size in SIZES for name in STATES]
    for row in rows:
        size = f"{row['instances']:4d} x {row['responses']:6,d}  {row['state']:9s}"
        taken = f"{row['plan_cpu_ms']:6.1f} ms (limit {row['limit_ms']:.0f})"
        done = f"{row['num_routed']:,} routed, {row['num_called']} to pull"
        print(f"{size} {taken}, with commands {row['with_commands_cpu_ms']:6.1f} ms, {done}")
    if options.json:
        machine = f"{platform.machine()}, one of {os.cpu_count()} cores, Python {platform.python_version()}"
        options.json.write_text(json.dumps({"machine": machine, "plans": rows}, indent=2) + "\n")
    judged = {
        name: all(row[name] < row["limit_ms"] for row in rows) for name in ("plan_cpu_ms", "with_commands_cpu_ms")
    }
    for name, holds in judged.items():
        print(f"{'pass' if holds else 'FAIL'}  {name} within the limit")
    return 0 if all(judged.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
