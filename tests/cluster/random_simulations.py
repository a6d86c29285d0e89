"""Random simulated clusters with faults, for what only the simulator knows: what jobs pay."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from cluster.random_histories import STATES, TENANTS, node_groups, rules
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec, StatePart
from tailrace.cluster.journal import Entry
from tailrace.cluster.scheduler import Scheduler
from tailrace.sim.cluster.driver import Driver
from tailrace.sim.cluster.faults import Fault, JobCrashes, NodeFails, PhaseSlows
from tailrace.sim.cluster.group_memory import Bandwidths
from tailrace.sim.cluster.job_model import JobPlan
from tailrace.sim.cluster.step_times import Overlap, StateUse, StepTimes, demand_trace, draw_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    first: ev.ClusterStarted
    plans: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]

    def run(self) -> tuple[Driver, list[Entry]]:
        entries = [Entry(now=0.0, event=self.first)]
        driver = Driver(
            self.first,
            Scheduler,
            self.plans,
            bandwidths=Bandwidths(device=100.0, disk=50.0, fixed_s=0.25),
            faults=self.faults,
            record=lambda now, event, commands: entries.append(Entry(now=now, event=event, commands=tuple(commands))),
        )
        driver.run()
        return driver, entries


@st.composite
def plans(draw: st.DrawFn, name: JobId) -> JobPlan:
    seconds = st.integers(1, 12).map(float)
    operations_s = draw(st.sampled_from([st.tuples(seconds, seconds), st.tuples(seconds, seconds, seconds)]))
    times = st.builds(StepTimes, rollout_s=seconds, operations_s=operations_s)
    cycle = tuple(draw(st.lists(times, min_size=1, max_size=2)))
    overlap = draw(st.sampled_from(Overlap))
    jitter, seed = draw(st.sampled_from([0.0, 0.2])), draw(st.integers(0, 50))
    steps = draw_steps(cycle, draw(st.integers(1, 4)), draw=Random(seed), jitter=jitter)
    use = StateUse(is_lazy=draw(st.booleans()), host_step_s=draw(st.sampled_from([0.0, 0.0, 3.0])))
    spec = JobSpec(
        id=name,
        train_devices=draw(st.sampled_from([8, 8, 16])),
        rollout_devices=draw(st.sampled_from([0, 3])),
        steps=len(steps),
        trace=demand_trace(cycle, overlap, use) if draw(st.booleans()) else None,
        state=draw(st.sampled_from(STATES)),
        host_parts=(StatePart.OPTIMIZER,) if use.host_step_s else (),
        tenant=draw(st.sampled_from(TENANTS)),
    )
    submitted = draw(st.sampled_from([0.0, 5.0, 40.0]))
    return JobPlan(spec=spec, model="any", overlap=overlap, cycle=cycle, steps=steps, use=use, submitted=submitted)


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    groups = draw(node_groups())
    names = [JobId(f"j{number}") for number in range(draw(st.integers(1, 5)))]
    nodes = [node for group in groups for node in group.nodes]
    at = st.floats(1, 80)
    faults = st.one_of(
        st.builds(NodeFails, at=at, node=st.sampled_from(nodes), down_s=st.floats(1, 40)),
        st.builds(JobCrashes, at=at, job=st.sampled_from(names)),
        st.builds(PhaseSlows, at=at, job=st.sampled_from(names)),
    )
    return Simulation(
        first=ev.ClusterStarted(rules=draw(rules()), groups=groups, rollout_devices=draw(st.sampled_from([6, 100]))),
        plans=tuple(draw(plans(name)) for name in names),
        # A node that is lost has to return before it is lost again.
        faults=tuple(draw(st.lists(faults, max_size=3, unique_by=lambda each: getattr(each, "node", id(each))))),
    )


def occupied_s(entries: list[Entry], simulation: Simulation) -> dict[NodeGroupId, float]:
    """Seconds in which at least one job belonged to each node group, from the journal alone."""
    group_of_node = {node: group.id for group in simulation.first.groups for node in group.nodes}
    members: dict[NodeGroupId, set[JobId]] = defaultdict(set)
    seconds: dict[NodeGroupId, float] = defaultdict(float)
    before = 0.0
    for entry in entries:
        for group, jobs in members.items():
            seconds[group] += (entry.now - before) if jobs else 0.0
        before = entry.now
        match entry.event:
            case ev.JobEnded(job=job):
                for jobs in members.values():
                    jobs.discard(job)
            case ev.NodeLost(node=node):
                members[group_of_node[node]].clear()
        for command in entry.commands:
            if isinstance(command, do.Place):
                members[command.group].add(command.job)
            elif isinstance(command, do.Move):
                members[command.source].discard(command.job)
                members[command.target].add(command.job)
    return seconds
