"""Random histories of a cluster in virtual time: jobs, node groups, faults and doubled reports.

Every job goes on in turns: it generates for a while, asks for a phase, runs what is granted, and reports. The world
holds the scheduler to what it can see itself: one job computes on a group at a time, its state is loaded when it
starts, its operations come in order, and a lease is given only to a job that asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from hypothesis import strategies as st

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandTrace, Segment
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId, TenantId
from tailrace.cluster.jobs import JobSpec, StateBytes
from tailrace.cluster.journal import Entry
from tailrace.cluster.rules import ClusterRules, Grain, NodeGroup, Order, Policy, Ratio, Transfers
from tailrace.cluster.scheduler import Scheduler

OPERATIONS = 3
MAX_EVENTS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is drawn before a history begins."""

    started: ev.ClusterStarted
    jobs: tuple[tuple[float, JobSpec], ...]
    """When each job is submitted."""
    lost: tuple[tuple[float, NodeId, float], ...] = ()
    """When which node is lost, and for how long."""
    crashes: tuple[tuple[float, JobId], ...] = ()
    slow: frozenset[tuple[JobId, int]] = frozenset()
    """Phases that take ten times as long."""
    failing: frozenset[tuple[JobId, int]] = frozenset()
    transfer_s: float = 1.0
    """Seconds of a transfer. A long one is still on its way when its node has been lost and has returned."""
    doubled: frozenset[int] = frozenset()
    """Numbers of reports that arrive twice."""


@dataclass(slots=True, kw_only=True)
class SimulatedJob:
    spec: JobSpec
    num_phases: int = 0
    num_operations_done: int = 0
    """Of the present phase."""
    lease: int | None = None
    group: NodeGroupId | None = None
    has_asked: bool = False
    is_over: bool = False


class World:
    def __init__(self, history: History) -> None:
        self.history, self.rules = history, history.started.rules
        self.scheduler = Scheduler(history.started)
        self.entries = [Entry(now=0.0, event=history.started)]
        self.jobs = {spec.id: SimulatedJob(spec=spec) for _, spec in history.jobs}
        self.refused: dict[JobId, str] = {}
        self.loaded: dict[NodeGroupId, JobId] = {}
        self.moving: dict[tuple[NodeGroupId, int], JobId] = {}
        """Transfers in progress: whose state each of them moves."""
        self.computing: dict[NodeGroupId, JobId] = {}
        self.group_of_node = {node: group.id for group in history.started.groups for node in group.nodes}
        self.waited: list[tuple[JobId, float]] = []
        self.asked_at: dict[JobId, float] = {}
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._reports = count(), count()
        self._wake: int | None = None

    def run(self, look: Callable[[World], None] = lambda world: None) -> None:
        for at, spec in self.history.jobs:
            self.at(at, lambda spec=spec: self._submit(spec))  # type: ignore[misc]
        for at, node, down_s in self.history.lost:
            self.at(at, lambda node=node: self._lose(node))  # type: ignore[misc]
            self.at(at + down_s, lambda node=node: self.tell(ev.NodeReturned(node=node)))  # type: ignore[misc]
        for at, job in self.history.crashes:
            self.at(at, lambda job=job: self._end(self.jobs[job], "crashed"))  # type: ignore[misc]
        for _ in range(MAX_EVENTS):
            if not self._agenda:
                return
            self.now, _, act = heapq.heappop(self._agenda)
            act()
            self.scheduler.check()
            look(self)
        raise AssertionError(f"the history does not end: {self.scheduler.waits(self.now)}")

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(time, self.now), next(self._numbers), act))

    def tell(self, event: ev.Event) -> None:
        times = 2 if next(self._reports) in self.history.doubled else 1
        for _ in range(times):
            commands = self.scheduler.handle(event, now=self.now)
            self.entries.append(Entry(now=self.now, event=event, commands=tuple(commands)))
            for command in commands:
                self._perform(command)

    def _perform(self, command: do.Command) -> None:
        match command:
            case do.Refuse(job=job, reason=reason):
                self.refused[job] = reason
                self.jobs[job].is_over = True
            case do.Place(job=job, group=group):
                self.jobs[job].group = group
            case do.Admit(job=job):
                self._generate(self.jobs[job])
            case do.Move(job=job, source=source, target=target):
                self._moved(self.jobs[job], source, target)
            case do.Offload(job=job, group=group):
                assert self.loaded.get(group) == job, f"{self.loaded.get(group)} is on {group}, not {job}"
                self._transfer(command, ev.Direction.OFFLOAD)
            case do.Load(job=job, group=group):
                assert group not in self.loaded, f"{job} is loaded on {group} over {self.loaded.get(group)}"
                self._transfer(command, ev.Direction.LOAD)
            case do.Prefetch():
                self._transfer(command, ev.Direction.PREFETCH)
            case do.GrantLease():
                self._grant(command)
            case do.Wake(at=at):
                self._wake = number = next(self._numbers)
                self.at(at, lambda: self.tell(ev.TimePassed()) if self._wake == number else None)

    # Jobs

    def _submit(self, spec: JobSpec) -> None:
        if not self.jobs[spec.id].is_over:
            self.tell(ev.JobSubmitted(job=spec))

    def _generate(self, job: SimulatedJob) -> None:
        trace = job.spec.trace
        pause = 5.0 if trace is None else trace.period_s - trace.busy_s
        self.at(self.now + pause, lambda: self._ask(job))

    def _ask(self, job: SimulatedJob) -> None:
        if job.is_over or job.has_asked:
            return
        job.has_asked = True
        self.asked_at[job.spec.id] = self.now
        seconds = self._operation_s(job)
        self.tell(ev.PhaseAsked(job=job.spec.id, operations_s=(seconds,) * (OPERATIONS - job.num_operations_done)))

    def _operation_s(self, job: SimulatedJob) -> float:
        return (3.0 if job.spec.trace is None else job.spec.trace.busy_s) / OPERATIONS

    def _grant(self, command: do.GrantLease) -> None:
        job = self.jobs[command.job]
        assert job.has_asked, f"{command.job} has a lease and did not ask"
        assert not job.is_over
        assert job.group == command.group
        assert command.group not in self.computing, f"two jobs compute on {command.group}"
        assert self.loaded.get(command.group) == command.job, f"{command.job} computes and is not loaded"
        assert 1 <= command.num_operations <= OPERATIONS - job.num_operations_done
        if self.rules.grain is Grain.OPERATION:
            assert command.num_operations == 1
        self.waited.append((command.job, self.now - self.asked_at[command.job]))
        self.computing[command.group] = command.job
        job.lease = command.lease
        phase = (command.job, job.num_phases)
        seconds = self._operation_s(job) * command.num_operations * (10 if phase in self.history.slow else 1)
        self.at(self.now + seconds, lambda: self._ended(job, command, seconds))

    def _ended(self, job: SimulatedJob, command: do.GrantLease, seconds: float) -> None:
        if job.lease != command.lease:
            return  # the lease was lost with its node
        failed = (command.job, job.num_phases) in self.history.failing and job.num_operations_done == 0
        self._stop_computing(job)
        job.has_asked = False
        job.num_operations_done += command.num_operations
        is_complete = failed or job.num_operations_done == OPERATIONS
        if is_complete:
            job.num_operations_done, job.num_phases = 0, job.num_phases + 1
        self.tell(
            ev.PhaseEnded(
                job=command.job,
                seconds=seconds,
                failed=failed,
                lease=command.lease,
                next_in_s=None if is_complete else 0.5,
            )
        )
        if not is_complete:
            self.at(self.now + 0.5, lambda: self._ask(job))
        elif job.num_phases >= job.spec.steps:
            self._end(job, "finished")
        else:
            self._profile(job)
            self._generate(job)

    def _profile(self, job: SimulatedJob) -> None:
        if job.spec.trace is None and job.num_phases == 2:
            segments = (Segment(offset_s=5.0, duration_s=3.0),)
            self.tell(ev.JobProfiled(job=job.spec.id, trace=DemandTrace(period_s=8.0, segments=segments)))

    def _end(self, job: SimulatedJob, reason: str) -> None:
        if job.is_over:
            return
        job.is_over = True
        self._stop_computing(job)
        if job.group is not None:
            self._clear(job.group, job.spec.id)
        self.tell(ev.JobEnded(job=job.spec.id, reason=reason))

    def _stop_computing(self, job: SimulatedJob) -> None:
        job.lease = None
        if job.group is not None and self.computing.get(job.group) == job.spec.id:
            del self.computing[job.group]

    def _moved(self, job: SimulatedJob, source: NodeGroupId, target: NodeGroupId) -> None:
        assert job.group == source
        assert self.computing.get(source) != job.spec.id, f"{job.spec.id} is moved while it computes"
        self._clear(source, job.spec.id)
        job.group = target

    # Devices

    def _transfer(self, command: do.Offload | do.Load | do.Prefetch, direction: ev.Direction) -> None:
        job, group = command.job, command.group
        num_bytes = self.jobs[job].spec.state.total
        seconds = self.history.transfer_s * (1.0 if num_bytes else 0.25)
        assert (group, command.transfer) not in self.moving
        self.moving[group, command.transfer] = job
        report = ev.TransferMeasured(
            job=job, group=group, transfer=command.transfer, direction=direction, num_bytes=num_bytes, seconds=seconds
        )

        def done() -> None:
            if self.moving.pop((group, command.transfer), None) is not None:
                if direction is ev.Direction.OFFLOAD:
                    del self.loaded[group]
                elif direction is ev.Direction.LOAD:
                    self.loaded[group] = job
            self.tell(report)  # also of a transfer that was given up: reports can be late

        self.at(self.now + seconds, done)

    def _clear(self, group: NodeGroupId, job: JobId) -> None:
        """Nothing of the job is left on the group."""
        if self.loaded.get(group) == job:
            del self.loaded[group]
        self._give_up_transfers(group, job)

    def _give_up_transfers(self, group: NodeGroupId, job: JobId | None = None) -> None:
        """``job``: None: those of all jobs."""
        gone = [key for key, mover in self.moving.items() if key[0] == group and job in (None, mover)]
        for key in gone:
            del self.moving[key]

    def _lose(self, node: NodeId) -> None:
        group = self.group_of_node[node]
        self.loaded.pop(group, None)
        self._give_up_transfers(group)
        if (job := self.computing.pop(group, None)) is not None:
            self.jobs[job].lease = None
        self.tell(ev.NodeLost(node=node))


# Strategies


def traces() -> st.SearchStrategy[DemandTrace]:
    def make(busy: int, pause: int, slack: int) -> DemandTrace:
        segment = Segment(offset_s=float(pause), duration_s=float(busy), slack_s=float(slack))
        return DemandTrace(period_s=float(busy + pause), segments=(segment,))

    return st.builds(make, st.integers(1, 6), st.integers(1, 20), st.integers(0, 5))


@st.composite
def rules(draw: st.DrawFn) -> ClusterRules:
    return ClusterRules(
        policy=draw(st.sampled_from(Policy)),
        ratio=draw(st.sampled_from(Ratio)),
        grain=draw(st.sampled_from(Grain)),
        order=draw(st.sampled_from(Order)),
        horizon_slots=draw(st.sampled_from([40, 120])),
        max_jobs_per_group=draw(st.integers(1, 4)),
        max_duty=draw(st.sampled_from([0.5, 0.8, 1.0])),
        max_wait_share=draw(st.sampled_from([0.1, 0.5])),
        max_wait_s=draw(st.sampled_from([5.0, 60.0])),
        hold_s=draw(st.sampled_from([0.0, 2.0])),
        prefetch=draw(st.booleans()),
        guard_s=1.0,
        drift_cycles=draw(st.integers(1, 3)),
        tenants=((TenantId("b"), 2.0),),
        transfers=Transfers(bytes_per_s=100.0, fixed_s=0.25),
    )


@st.composite
def histories(draw: st.DrawFn, *, has_faults: bool = True) -> History:
    num_groups = draw(st.integers(1, 3))
    groups = tuple(
        NodeGroup(
            id=NodeGroupId(f"g{number}"),
            nodes=(NodeId(f"n{number}a"), NodeId(f"n{number}b")),
            devices=draw(st.sampled_from([8, 8, 16])),
            device_bytes=100,
            host_bytes=draw(st.sampled_from([100, 200, 1000])),
            disk_bytes=draw(st.sampled_from([0, 100])),
        )
        for number in range(num_groups)
    )
    names = [JobId(f"j{number}") for number in range(draw(st.integers(1, 6)))]
    jobs = tuple((draw(st.sampled_from([0.0, 3.0, 17.0, 60.0])), draw(specs(name))) for name in names)
    phases = st.frozensets(st.tuples(st.sampled_from(names), st.integers(0, 4)), max_size=2)
    nodes = [node for group in groups for node in group.nodes]
    some_lost = st.lists(
        st.tuples(st.floats(1, 80), st.sampled_from(nodes), st.floats(1, 40)),
        max_size=2,
        unique_by=lambda each: each[1],
    )
    crashes = st.lists(st.tuples(st.floats(1, 80), st.sampled_from(names)), max_size=2)
    return History(
        started=ev.ClusterStarted(
            rules=draw(rules()), groups=groups, rollout_devices=draw(st.sampled_from([4, 8, 100]))
        ),
        jobs=jobs,
        lost=tuple(draw(some_lost)) if has_faults else (),
        crashes=tuple(draw(crashes)) if has_faults else (),
        slow=draw(phases) if has_faults else frozenset(),
        failing=draw(phases) if has_faults else frozenset(),
        transfer_s=draw(st.sampled_from([1.0, 1.0, 15.0])),
        doubled=draw(st.frozensets(st.integers(0, 100), max_size=8)) if has_faults else frozenset(),
    )


STATES = [StateBytes(), StateBytes(weights=10, optimizer=40), StateBytes(weights=50, optimizer=50)]


def specs(name: JobId) -> st.SearchStrategy[JobSpec]:
    return st.builds(
        JobSpec,
        id=st.just(name),
        train_devices=st.sampled_from([8, 8, 8, 16]),
        rollout_devices=st.sampled_from([0, 2, 4]),
        steps=st.integers(1, 6),
        trace=st.one_of(st.none(), traces(), traces()),
        state=st.sampled_from(
            [StateBytes(), StateBytes(weights=10, optimizer=40), StateBytes(weights=50, optimizer=50)]
        ),
        tenant=st.sampled_from([TenantId("a"), TenantId("b")]),
    )
