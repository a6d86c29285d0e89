"""How long does one plan take, for many instances and responses?

    python benchmarks/planning.py --json benchmarks/results/planning.json

A plan is all three strategies, throughput-oriented, on one state of the rooms: synchronize, migrate, route, each
with the view it looks at. ``with commands`` is the whole rule ``plan``: it asks the strategies, changes the state and
makes the commands. States of the rooms, each with bound 3:

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

from tailrace.core.collection.group_changes import begin
from tailrace.core.commands import Command, Submit
from tailrace.core.costs import CostModel
from tailrace.core.fleet import planning
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.views import fleet_view
from tailrace.core.ids import GroupId, Version
from tailrace.core.responses.response import Response, ResponsePhase
from tailrace.core.rooms import Rooms
from tailrace.core.schedule import Coordination, Leftovers, Schedule
from tailrace.policies.strategies import policies_of

SIZES = {(32, 2_048): 0.010, (256, 16_384): 0.100}
"""(instances, responses): CPU seconds a plan may take, with its commands too."""
GROUP_SIZE, BOUND = 16, 3
VERSIONS = (4, 5, 6)
NOW = 100.0


def schedule_of(num_instances: int, num_responses: int, *, num_batches: int) -> Schedule:
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
            routing="throughput",
            synchronization="throughput",
            migration="throughput",
            # Qwen3-30B-A3B on H20, as the paper has it, with room for about forty responses of full length.
            costs=CostModel(k1=7.28e-8, k2=1.72e-3, k3=1.25e-4, k4=1.07e-2),
            kv_tokens=800_000,
            max_running=256,
            prompt_length=500,
        ),
    )


def blank(schedule: Schedule, num_responses: int) -> Rooms:
    """Idle instances of the published version, and groups that have begun nothing."""
    rooms = Rooms(schedule, policies_of(schedule))
    rooms.training.version = rooms.training.published = Version(max(VERSIONS))
    rooms.collection.ledger.current = rooms.training.version
    rooms.collection.ledger.__post_init__()
    for instance in rooms.fleet.instances.values():
        instance.phase, instance.version = InstancePhase.READY, rooms.training.published
    rooms.fleet.num_absent = 0
    for prompt in range(num_responses // GROUP_SIZE):
        begin(rooms, GroupId("train", 0, prompt), "")
    return rooms


def started(schedule: Schedule, num_responses: int, rng: random.Random) -> Rooms:
    """Every response has tokens of the oldest version, and waits."""
    rooms = blank(schedule, num_responses)
    for group in rooms.responses.groups.values():
        group.version = Version(min(VERSIONS))
        rooms.collection.ledger.reserve(group.id, group.version)
        for response in group.members.values():
            response.grow(int(min(20_000, rng.lognormvariate(8.0, 0.8))), group.version)
    return rooms


def steady(schedule: Schedule, num_responses: int, rng: random.Random) -> Rooms:
    rooms = started(schedule, num_responses, rng)
    numbers = list(rooms.fleet.instances)
    for number, instance in rooms.fleet.instances.items():
        instance.version = Version(VERSIONS[number % len(VERSIONS)])
    for group in rooms.responses.groups.values():
        for response in group.members.values():
            if rng.random() < 0.9:
                _run(rooms, response, rooms.fleet.instances[rng.choice(numbers)])
    # What waits has gone on with a newer version since: the older instances may not take it.
    for group in rooms.responses.pending:
        for response in rooms.responses.groups[group].members.values():
            if response.phase is ResponsePhase.PENDING:
                response.grow(response.length + 10, Version(max(VERSIONS)))
    return rooms


def published(schedule: Schedule, num_responses: int, rng: random.Random) -> Rooms:
    rooms = blank(schedule, num_responses)
    behind = VERSIONS[:-1]
    for number, instance in rooms.fleet.instances.items():
        instance.version = Version(behind[number % len(behind)])
    for index, group in enumerate(list(rooms.responses.groups.values())[: BOUND * schedule.batch_size]):
        group.version = Version(min(behind) - 1 + index // schedule.batch_size)
        rooms.collection.ledger.reserve(group.id, group.version)
        for response in group.members.values():
            wrote = Version(max(group.version, min(behind)))
            response.grow(int(min(20_000, rng.lognormvariate(7.0, 0.8))), wrote)
            _run(rooms, response, rng.choice([i for i in rooms.fleet.instances.values() if i.version >= wrote]))
    return rooms


def _run(rooms: Rooms, response: Response, instance: Instance) -> None:
    rooms.responses.stop_waiting(response.id.group, 1)
    response.move(ResponsePhase.RUNNING, now=0.0)
    response.instance = instance.id
    instance.running[response.id] = None
    instance.num_tokens += response.length


STATES: dict[str, tuple[Callable[[Schedule, int, random.Random], Rooms], int]] = {
    "all wait": (started, 2),
    "start": (lambda schedule, count, rng: blank(schedule, count), 2),
    "steady": (steady, 2),
    "published": (published, BOUND + 1),
}
"""How a state is made, and into how many batches its responses are divided."""


def choose(rooms: Rooms) -> None:
    policies = rooms.policies
    list(policies.synchronization.choose(fleet_view(rooms, NOW)))
    list(policies.migration.choose(fleet_view(rooms, NOW)))
    list(policies.routing.route(fleet_view(rooms, NOW)))


def carry_out(rooms: Rooms) -> list[Command]:
    return [command for command in planning.plan(rooms, NOW) if command is not None]


def cpu_s(action: Callable[[Rooms], Any], rooms: Rooms) -> tuple[float, Any]:
    gc.collect()
    begin_s = time.process_time()
    result = action(rooms)
    return time.process_time() - begin_s, result


def measure(num_instances: int, num_responses: int, name: str, repeats: int) -> dict[str, Any]:
    make, num_batches = STATES[name]
    schedule = schedule_of(num_instances, num_responses, num_batches=num_batches)
    plans, rules, num_routed, num_called = [], [], 0, 0
    for repeat in range(repeats):
        rooms = make(schedule, num_responses, random.Random(repeat))
        plans.append(cpu_s(choose, rooms)[0])
        taken, commands = cpu_s(carry_out, rooms)
        rules.append(taken)
        num_routed = sum(len(command.dispatches) for command in commands if isinstance(command, Submit))
        num_called = sum(instance.is_draining for instance in rooms.fleet.instances.values())
    limit, chosen_s, whole_s = SIZES[num_instances, num_responses], statistics.median(plans), statistics.median(rules)
    return {
        "instances": num_instances,
        "responses": num_responses,
        "state": name,
        "plan_cpu_ms": round(1e3 * chosen_s, 2),
        "plan_most_cpu_ms": round(1e3 * max(plans), 2),
        "with_commands_cpu_ms": round(1e3 * whole_s, 2),
        "with_commands_most_cpu_ms": round(1e3 * max(rules), 2),
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
