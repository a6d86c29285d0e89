"""Strategies that draw histories of a cluster: rules, node groups, jobs alone and in streams, and faults.

Each strategy is made once and drawn from often: to make one takes longer than to draw from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TypeVar

from hypothesis import strategies as st

from cluster.random_cluster import Change, History
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId, TenantId
from tailrace.cluster.job_spec import JobSpec, StateBytes, StatePart
from tailrace.cluster.settings import ClusterRules, Grain, NodeGroup, Order, Policy, Ratio, Transfers

STATES = [
    StateBytes(),
    StateBytes(weights=10, optimizer=40),
    StateBytes(weights=50, optimizer=50),
    StateBytes(weights=20, gradients=20, optimizer=60),
]
WEIGHTS, GRADIENTS, OPTIMIZER = StatePart
LAZY = [(), ((WEIGHTS,), None), ((WEIGHTS,), (WEIGHTS, OPTIMIZER), (WEIGHTS, GRADIENTS))]
"""Parts of their state that the phases of jobs need, in turn."""
TENANTS = [TenantId("a"), TenantId("b")]
Value = TypeVar("Value")


@lru_cache(maxsize=None, typed=True)
def one_of(*values: Value) -> st.SearchStrategy[Value]:
    return st.sampled_from(values)


@cache
def whole(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


@st.composite
def traces(draw: st.DrawFn) -> DemandTrace:
    """A period of one to three segments."""
    segments, at = [], 0.0
    for _ in range(draw(one_of(1, 1, 2, 3))):
        offset_s = at + draw(whole(1, 12))
        duration_s, slack_s = draw(whole(1, 6)), draw(whole(0, 5))
        segments.append(DemandSegment(offset_s=offset_s, duration_s=float(duration_s), slack_s=float(slack_s)))
        at = segments[-1].end_s
    period_s = at + draw(whole(0, 6))
    return DemandTrace(period_s=period_s, segments=tuple(segments), steps=draw(one_of(1, len(segments))))


TRACES = traces()


@st.composite
def rules(draw: st.DrawFn) -> ClusterRules:
    return ClusterRules(
        policy=draw(one_of(*Policy)),
        ratio=draw(one_of(*Ratio)),
        grain=draw(one_of(*Grain)),
        order=draw(one_of(*Order)),
        max_jobs_per_group=draw(whole(1, 4)),
        max_duty=draw(one_of(0.5, 0.8, 1.0)),
        max_wait_share=draw(one_of(0.1, 0.5)),
        max_wait_s=draw(one_of(5.0, 60.0)),
        max_queue_s=draw(one_of(10.0, 86_400.0)),
        hold_s=draw(one_of(0.0, 2.0)),
        prefetch=draw(st.booleans()),
        predict_switches=draw(one_of(True, True, False)),
        guard_s=1.0,
        drift_cycles=draw(whole(1, 3)),
        tenants=((TenantId("b"), 2.0),),
        transfers=Transfers(bytes_per_s=100.0, fixed_s=0.25),
    )


@st.composite
def node_groups(draw: st.DrawFn) -> tuple[NodeGroup, ...]:
    return tuple(
        NodeGroup(
            id=NodeGroupId(f"g{number}"),
            nodes=(NodeId(f"n{number}a"), NodeId(f"n{number}b")),
            devices=draw(one_of(8, 8, 16)),
            device_bytes=100,
            host_bytes=draw(one_of(100, 200, 1000)),
            disk_bytes=draw(one_of(0, 100)),
        )
        for number in range(draw(whole(1, 4)))
    )


@cache
def specs(name: JobId) -> st.SearchStrategy[JobSpec]:
    return st.builds(
        JobSpec,
        id=st.just(name),
        train_devices=st.sampled_from([8, 8, 8, 16]),
        rollout_devices=st.sampled_from([0, 2, 4]),
        steps=st.integers(1, 5),
        trace=st.one_of(st.none(), TRACES),
        state=st.sampled_from(STATES),
        tenant=st.sampled_from(TENANTS),
        host_parts=st.sampled_from([(), (), (OPTIMIZER,)]),
    )


@st.composite
def job_lists(draw: st.DrawFn) -> tuple[tuple[float, JobSpec], ...]:
    """A few different jobs, and perhaps a stream of equal short ones."""
    names = [JobId(f"j{number}") for number in range(draw(one_of(1, 2, 3, 5, 8)))]
    jobs = [(draw(one_of(0.0, 3.0, 17.0, 60.0)), draw(specs(name))) for name in names]
    length, every_s = draw(one_of(0, 0, 3, 6)), draw(one_of(2.0, 9.0))
    if length:
        one = replace(draw(specs(JobId("s"))), steps=1)
        jobs += [(number * every_s, replace(one, id=JobId(f"s{number}"))) for number in range(length)]
    return tuple(jobs)


RULES, NODE_GROUPS, JOB_LISTS = rules(), node_groups(), job_lists()
SILENT = st.frozensets(st.integers(0, 40), max_size=2)
DOUBLED = st.frozensets(st.integers(0, 100), max_size=8)


@cache
def some_phases(names: tuple[JobId, ...]) -> st.SearchStrategy[frozenset[tuple[JobId, int]]]:
    return st.frozensets(st.tuples(st.sampled_from(names), st.integers(0, 4)), max_size=2)


@cache
def some_lost(nodes: tuple[NodeId, ...]) -> st.SearchStrategy[list[tuple[float, NodeId, float]]]:
    one = st.tuples(st.floats(1, 80), st.sampled_from(nodes), st.floats(1, 40))
    return st.lists(one, max_size=2, unique_by=lambda each: each[1])


@cache
def some_crashes(names: tuple[JobId, ...]) -> st.SearchStrategy[list[tuple[float, JobId]]]:
    return st.lists(st.tuples(st.floats(1, 80), st.sampled_from(names)), max_size=2)


@st.composite
def histories(draw: st.DrawFn, *, has_outages: bool = True) -> History:
    """``has_outages``: whether nodes are lost, and leases and transfers never answer."""
    groups, jobs = draw(NODE_GROUPS), draw(JOB_LISTS)
    names = tuple([spec.id for _, spec in jobs])
    phases = some_phases(names)
    nodes = tuple([node for group in groups for node in group.nodes])
    rollout_devices = draw(one_of(4, 8, 100))
    return History(
        started=ev.ClusterStarted(rules=draw(RULES), groups=groups, rollout_devices=rollout_devices),
        jobs=jobs,
        jitter=draw(one_of(0.0, 0.0, 0.1, 0.3)),
        seed=draw(whole(0, 100)),
        transfer_s=draw(one_of(1.0, 1.0, 15.0)),
        lost=tuple(draw(some_lost(nodes))) if has_outages else (),
        crashes=tuple(draw(some_crashes(names))),
        slow=draw(phases),
        failing=draw(phases),
        says_pauses=draw(st.booleans()),
        parts=draw(one_of(*LAZY)),
        silent=draw(SILENT) if has_outages else frozenset(),
        doubled=draw(DOUBLED),
    )


HISTORIES = histories()
KINDS = st.lists(st.one_of(st.none(), TRACES), min_size=1, max_size=3)


@st.composite
def equal_job_histories(draw: st.DrawFn) -> History:
    """Jobs that are all alike and keep to their times exactly. Their switches cost what is assumed."""
    history = draw(HISTORIES)
    trace = draw(TRACES)
    trace = replace(trace, segments=tuple(replace(each, duration_s=1.0, slack_s=2.0) for each in trace.segments))
    one = replace(draw(specs(JobId("j"))), trace=trace, state=StateBytes(), tenant=TENANTS[0])
    started = replace(
        history.started,
        rules=replace(history.started.rules, prefetch=False, transfers=Transfers(fixed_s=history.transfer_s * 0.25)),
    )
    jobs = tuple((at, replace(one, id=spec.id)) for at, spec in history.jobs)
    return replace(history, started=started, jobs=jobs, jitter=0.0, slow=frozenset())


@st.composite
def alike_histories(draw: st.DrawFn, policies: Sequence[Policy]) -> History:
    """Jobs of one to three kinds of demand, as runs of the same models have, and waits that close groups to others."""
    history = draw(HISTORIES)
    kinds = draw(KINDS)
    jobs = tuple(
        (at, replace(spec, train_devices=8, state=STATES[0], trace=kinds[number % len(kinds)]))
        for number, (at, spec) in enumerate(history.jobs)
    )
    groups = tuple(replace(group, devices=8) for group in history.started.groups)
    rules = replace(history.started.rules, policy=draw(one_of(*policies)), max_wait_share=0.1)
    return replace(history, jobs=jobs, started=replace(history.started, groups=groups, rules=rules))


CHANGES = st.builds(
    Change,
    period=st.integers(0, 6),
    pauses=one_of(0.5, 1.0, 1.0, 1.3, 2.0, 4.0),
    phases=one_of(0.5, 1.0, 1.0, 1.3, 2.0, 4.0),
    growth=one_of(1.0, 1.0, 1.01, 1.1),
)


@st.composite
def drifting_histories(draw: st.DrawFn, *, has_faults: bool = True) -> History:
    """A few longer jobs whose periods and phases grow, jump or become shorter while they run. Without faults they keep
    to their times exactly, and nobody has slack."""
    history = draw(HISTORIES)
    jobs = tuple((at, replace(spec, steps=draw(whole(4, 25)))) for at, spec in history.jobs[:4])
    names = frozenset(spec.id for _, spec in jobs)
    changes = tuple((name, draw(CHANGES)) for name in sorted(names))
    history = replace(
        history,
        jobs=jobs,
        changes=changes,
        crashes=tuple(crash for crash in history.crashes if crash[1] in names),
        max_events=40_000,
    )
    if has_faults:
        return history
    return replace(
        history,
        jobs=tuple((at, replace(spec, trace=_without_slack(spec.trace))) for at, spec in jobs),
        jitter=0.0, lost=(), crashes=(), slow=frozenset(), failing=frozenset(), silent=frozenset(), doubled=frozenset(),
    )  # fmt: skip


def _without_slack(trace: DemandTrace | None) -> DemandTrace | None:
    if trace is None:
        return None
    return replace(trace, segments=tuple(replace(segment, slack_s=0.0) for segment in trace.segments))


@st.composite
def shared_histories(draw: st.DrawFn) -> History:
    """Jobs of known demand that all share one group without outages, so that their states move often."""
    history = draw(histories(has_outages=False))
    jobs = tuple(
        (at, replace(spec, train_devices=8, rollout_devices=0, trace=spec.trace or draw(TRACES), steps=3 * spec.steps))
        for at, spec in history.jobs
    )
    group = replace(history.started.groups[0], devices=8, host_bytes=10_000)
    rules = replace(
        history.started.rules,
        policy=Policy.PACK,
        max_jobs_per_group=4,
        max_duty=10.0,
        max_wait_share=1.0,
        predict_switches=True,
    )
    return replace(history, jobs=jobs, started=replace(history.started, groups=(group,), rules=rules))
