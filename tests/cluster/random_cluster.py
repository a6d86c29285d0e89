"""Random histories of a cluster in virtual time (``random_histories.py`` draws them).

Every job goes on in turns: it generates for a while, asks for a phase, runs what is granted, and reports. The world
holds the scheduler to what it can see itself: one job computes on a group at a time, its state is loaded when it
starts, its operations come in order, and a lease is given only to a job that asked.

If something never answers, an operator restarts a node of the group when the limit of its named wait has passed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.events import Direction
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec, StatePart
from tailrace.cluster.journal import Entry
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import Grain

OPERATIONS = 3
UNKNOWN = DemandTrace(period_s=8.0, segments=(DemandSegment(offset_s=5.0, duration_s=3.0),))
"""What a job does whose demand is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How a job's pauses and phases become longer or shorter than its demand trace says."""

    period: int
    """From this period of the job on."""
    pauses: float = 1.0
    """Factor of the pauses; also for the next two."""
    phases: float = 1.0
    growth: float = 1.0
    """Of each period beside the one before."""

    def factors(self, period: int) -> tuple[float, float]:
        """Of pauses and of phases."""
        if period < self.period:
            return 1.0, 1.0
        grown = self.growth ** (period - self.period)
        return self.pauses * grown, self.phases * grown


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is drawn before a history begins."""

    started: ev.ClusterStarted
    jobs: tuple[tuple[float, JobSpec], ...]
    """When each job is submitted."""
    jitter: float = 0.0
    """Share by which pauses and phases are longer or shorter."""
    seed: int = 0
    transfer_s: float = 1.0
    """Seconds of a transfer. A long one is still on its way when its node has been lost and has returned."""
    lost: tuple[tuple[float, NodeId, float], ...] = ()
    """When which node is lost, and for how long."""
    crashes: tuple[tuple[float, JobId], ...] = ()
    slow: frozenset[tuple[JobId, int]] = frozenset()
    """Phases that take ten times as long."""
    failing: frozenset[tuple[JobId, int]] = frozenset()
    """Phases that fail once."""
    says_pauses: bool = False
    """Whether jobs say when they will ask for their next phase."""
    parts: tuple[tuple[StatePart, ...] | None, ...] = ()
    """Parts of the state that the phases of all jobs need, in turn; empty: all."""
    silent: frozenset[int] = frozenset()
    """Numbers of leases and transfers, counted together, that never answer."""
    doubled: frozenset[int] = frozenset()
    """Numbers of reports that arrive twice."""
    changes: tuple[tuple[JobId, Change], ...] = ()
    max_events: int = 4000


@dataclass(slots=True, kw_only=True)
class SimulatedJob:
    spec: JobSpec
    trace: DemandTrace
    change: Change = Change(period=0)
    num_phases: int = 0
    num_operations_done: int = 0
    """Of the present phase."""
    has_failed: bool = False
    """Whether the present phase has failed once."""
    lease: int | None = None
    lease_since: float = 0.0
    group: NodeGroupId | None = None
    joined_at: float = 0.0
    """Since when it belongs to its group."""
    shift_s: float = 0.0
    has_asked: bool = False
    asked_at: float = 0.0
    is_over: bool = False

    @property
    def segment(self) -> DemandSegment:
        return self.trace.segments[self.num_phases % len(self.trace.segments)]

    @property
    def factors(self) -> tuple[float, float]:
        """How many times as long as in its trace pauses and phases are now."""
        return self.change.factors(self.num_phases // len(self.trace.segments))

    @property
    def period_s(self) -> float:
        """How long its period takes without waiting, if nothing changes from now on."""
        pauses, phases = self.factors
        return pauses * (self.trace.period_s - self.trace.busy_s) + phases * self.trace.busy_s

    @property
    def pause_s(self) -> float:
        """From the end of the phase before to the present one, as planned."""
        number = self.num_phases % len(self.trace.segments)
        if number:
            return self.segment.offset_s - self.trace.segments[number - 1].end_s
        rest_s = self.trace.period_s - self.trace.segments[-1].end_s if self.num_phases else self.shift_s
        return rest_s + self.segment.offset_s

    @property
    def is_complete(self) -> bool:
        return self.num_phases * self.trace.steps >= self.spec.steps * len(self.trace.segments)

    def waits_on(self, group: NodeGroupId) -> bool:
        return self.group == group and self.has_asked and self.lease is None and not self.is_over


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """A transfer in progress."""

    job: JobId
    direction: Direction
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    job: JobId
    seconds: float
    has_moved: bool
    """Whether the job came to its group while it waited."""


class World:
    def __init__(self, history: History) -> None:
        self.history, self.rules = history, history.started.rules
        self.scheduler = Scheduler(history.started)
        self.entries = [Entry(now=0.0, event=history.started)]
        changes = dict(history.changes)
        self.jobs = {
            spec.id: SimulatedJob(spec=spec, trace=spec.trace or UNKNOWN, change=changes.get(spec.id, Change(period=0)))
            for _, spec in history.jobs
        }
        self.refused: dict[JobId, str] = {}
        self.loaded: dict[NodeGroupId, JobId] = {}
        self.parts: dict[NodeGroupId, set[StatePart]] = {}
        """Parts of the loaded job's state that are on the devices."""
        self.moving: dict[tuple[NodeGroupId, int], Moving] = {}
        self.computing: dict[NodeGroupId, JobId] = {}
        self.group_of_node = {node: group.id for group in history.started.groups for node in group.nodes}
        self.down: set[NodeId] = set()
        self.waited: list[Waited] = []
        self.longest_lease_s = 0.0
        self.now = 0.0
        self._random = random.Random(history.seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._reports, self._answers = count(), count(), count()
        self._wake: int | None = None

    def run(self, look: Callable[[World], None] = lambda world: None) -> None:
        """``look`` is called after each event."""
        for at, spec in self.history.jobs:
            self.at(at, lambda spec=spec: self._submit(spec))  # type: ignore[misc]
        for at, node, down_s in self.history.lost:
            self.at(at, lambda node=node, down_s=down_s: self._lose(node, down_s))  # type: ignore[misc]
        for at, job in self.history.crashes:
            self.at(at, lambda job=job: self._end(self.jobs[job], "crashed"))  # type: ignore[misc]
        for _ in range(self.history.max_events):
            if not self._agenda:
                return
            self.now, _, act = heapq.heappop(self._agenda)
            num_told = len(self.entries)
            act()
            self.scheduler.check()
            if len(self.entries) > num_told:  # else nobody told the scheduler what time it is
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

    def under_way(self) -> dict[str, float]:
        """Since when each lease and each transfer is in progress, named as the waits name them."""
        leases = {
            f"job {job}: its operations on group {group}": self.jobs[job].lease_since
            for group, job in self.computing.items()
        }
        transfers = {
            f": {each.direction} of {each.job} on group {group}": each.since for (group, _), each in self.moving.items()
        }
        return leases | transfers

    def _perform(self, command: do.Command) -> None:
        match command:
            case do.Refuse(is_name_taken=True):
                pass  # the report of its submission came twice
            case do.Refuse(job=job, reason=reason):
                self.refused[job] = reason
                self.jobs[job].is_over = True
            case do.Place(job=job, group=group, shift_s=shift_s):
                self.jobs[job].group, self.jobs[job].shift_s, self.jobs[job].joined_at = group, shift_s, self.now
            case do.Admit(job=job):
                self._generate(self.jobs[job])
            case do.Move(job=job, source=source, target=target):
                self._moved(self.jobs[job], source, target)
            case do.Offload(job=job, group=group):
                assert self.loaded.get(group) == job, f"{self.loaded.get(group)} is on {group}, not {job}"
                self._transfer(command, Direction.OFFLOAD)
            case do.Load(job=job, group=group, parts=parts):
                assert self.loaded.get(group, job) == job, f"{job} is loaded on {group} over {self.loaded.get(group)}"
                assert parts, "nothing to load"
                assert not self.parts.get(group, set()) & set(parts), "loaded twice"
                assert not set(parts) & set(self.jobs[job].spec.host_parts), "a part that stays on the host"
                self._transfer(command, Direction.LOAD)
            case do.Prefetch():
                self._transfer(command, Direction.PREFETCH)
            case do.GrantLease():
                self._grant(command)
            case do.Wake(at=at):
                self._wake = number = next(self._numbers)
                self.at(at, lambda: self.tell(ev.TimePassed()) if self._wake == number else None)

    # Jobs

    def _submit(self, spec: JobSpec) -> None:
        if not self.jobs[spec.id].is_over:
            self.tell(ev.JobSubmitted(job=spec))

    def _jittered(self, seconds: float) -> float:
        jitter = self.history.jitter
        return seconds * self._random.uniform(1 - jitter, 1 + jitter) if jitter else seconds

    def _generate(self, job: SimulatedJob) -> None:
        self.at(self.now + self._jittered(job.pause_s * job.factors[0]), lambda: self._ask(job))

    def _ask(self, job: SimulatedJob) -> None:
        if job.is_over or job.has_asked:
            return
        job.has_asked, job.asked_at = True, self.now
        operations_s = (job.segment.duration_s / OPERATIONS,) * (OPERATIONS - job.num_operations_done)
        slack_s, parts = job.segment.slack_s, self._parts_of(job)
        self.tell(ev.PhaseAsked(job=job.spec.id, operations_s=operations_s, slack_s=slack_s, parts=parts))

    def _parts_of(self, job: SimulatedJob) -> tuple[StatePart, ...] | None:
        """Parts of its state that the present phase needs; None: all that can be on the devices."""
        chosen = self.history.parts
        wanted = chosen[job.num_phases % len(chosen)] if chosen else None
        return None if wanted is None else tuple(part for part in wanted if part not in job.spec.host_parts)

    def _grant(self, command: do.GrantLease) -> None:
        job, group = self.jobs[command.job], command.group
        assert job.has_asked, f"{command.job} has a lease and did not ask"
        assert not job.is_over
        assert job.group == group
        assert group not in self.computing, f"two jobs compute on {group}"
        assert self.loaded.get(group) == command.job, f"{command.job} computes and is not loaded"
        wanted = self._parts_of(job)
        needed = set(job.spec.device_parts if wanted is None else wanted)
        assert needed <= self.parts[group], f"{command.job} computes with {self.parts[group]}, and needs {needed}"
        assert 1 <= command.num_operations <= OPERATIONS - job.num_operations_done
        if self.rules.grain is Grain.OPERATION:
            assert command.num_operations == 1
        has_moved = job.joined_at > job.asked_at
        self.waited.append(Waited(job=command.job, seconds=self.now - job.asked_at, has_moved=has_moved))
        self.computing[group] = command.job
        job.lease, job.lease_since = command.lease, self.now
        factor = (10 if (command.job, job.num_phases) in self.history.slow else 1) * job.factors[1]
        seconds = self._jittered(job.segment.duration_s / OPERATIONS * command.num_operations) * factor
        self.longest_lease_s = max(self.longest_lease_s, seconds)
        self._answer(
            group,
            f"job {command.job}: its operations on group {group}",
            lambda: job.lease == command.lease,
            seconds,
            lambda: self._ended(job, command, seconds),
        )

    def _ended(self, job: SimulatedJob, command: do.GrantLease, seconds: float) -> None:
        if job.lease != command.lease:
            return  # the lease was lost with its node
        failed = (command.job, job.num_phases) in self.history.failing and not job.has_failed
        self._stop_computing(job)
        job.has_asked, job.has_failed = False, job.has_failed or failed
        job.num_operations_done = 0 if failed else job.num_operations_done + command.num_operations
        is_complete = job.num_operations_done == OPERATIONS
        if is_complete:
            job.num_operations_done, job.num_phases, job.has_failed = 0, job.num_phases + 1, False
        next_in_s = None if failed else self._next_in_s(job) if is_complete else 0.5
        self.tell(
            ev.PhaseEnded(job=command.job, seconds=seconds, failed=failed, lease=command.lease, next_in_s=next_in_s)
        )
        if not is_complete:  # the rest of the phase, or the whole of it again
            self.at(self.now + 0.5, lambda: self._ask(job))
        elif job.is_complete:
            self._end(job, "finished")
        else:
            self._profile(job)
            self._generate(job)

    def _next_in_s(self, job: SimulatedJob) -> float | None:
        """What the job says about its next phase."""
        return job.pause_s if self.history.says_pauses and not job.is_complete else None

    def _profile(self, job: SimulatedJob) -> None:
        if job.spec.trace is None and job.num_phases == 2:
            self.tell(ev.JobProfiled(job=job.spec.id, trace=UNKNOWN))

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
        job.group, job.joined_at = target, self.now

    # Devices

    def _transfer(self, command: do.Offload | do.Load | do.Prefetch, direction: Direction) -> None:
        job, group, key = command.job, command.group, (command.group, command.transfer)
        num_bytes = self.jobs[job].spec.state.total
        seconds = self.history.transfer_s * (1.0 if num_bytes else 0.25)
        assert key not in self.moving
        assert not any(self.group_of_node[node] == group for node in self.down)
        self.moving[key] = moving = Moving(job=job, direction=direction, since=self.now)
        report = ev.TransferMeasured(
            job=job, group=group, transfer=command.transfer, direction=direction, num_bytes=num_bytes, seconds=seconds
        )

        def done() -> None:
            if self.moving.pop(key, None) is not None:
                if isinstance(command, do.Offload):
                    self._unload(group)
                elif isinstance(command, do.Load):
                    self._prefetches_are_over(group)
                    self.loaded[group] = job
                    self.parts.setdefault(group, set()).update(command.parts)
            self.tell(report)  # also of a transfer that was given up: reports can be late

        is_in_progress = lambda: self.moving.get(key) is moving  # noqa: E731
        self._answer(group, f": {direction} of {job} on group {group}", is_in_progress, seconds, done)

    def _answer(
        self,
        group: NodeGroupId,
        name: str,
        is_in_progress: Callable[[], bool],
        seconds: float,
        answer: Callable[[], None],
    ) -> None:
        """Answer after some seconds; or never: then somebody who watches the waits restarts the group."""
        if next(self._answers) not in self.history.silent:
            self.at(self.now + seconds, answer)
            return

        def watch() -> None:
            if is_in_progress():
                [wait] = [wait for wait in self.scheduler.waits(self.now) if name in wait.what]
                assert wait.until < math.inf
                self.at(wait.until, restart)

        def restart() -> None:
            if is_in_progress():
                self._lose(next(node for node, where in self.group_of_node.items() if where == group), 1.0)

        self.at(self.now, watch)

    def _clear(self, group: NodeGroupId, job: JobId) -> None:
        """Nothing of the job is left on the group."""
        if self.loaded.get(group) == job:
            self._unload(group)
        self._give_up(lambda where, moving: (where, moving.job) == (group, job))

    def _unload(self, group: NodeGroupId) -> None:
        self.loaded.pop(group, None)
        self.parts.pop(group, None)

    def _prefetches_are_over(self, group: NodeGroupId) -> None:
        self._give_up(lambda where, moving: where == group and moving.direction is Direction.PREFETCH)

    def _give_up(self, is_lost: Callable[[NodeGroupId, Moving], bool]) -> None:
        self.moving = {key: moving for key, moving in self.moving.items() if not is_lost(key[0], moving)}

    def _lose(self, node: NodeId, down_s: float) -> None:
        group = self.group_of_node[node]
        self.down.add(node)
        self._unload(group)
        self._give_up(lambda where, moving: where == group)
        if (job := self.computing.pop(group, None)) is not None:
            self.jobs[job].lease = None
        self.tell(ev.NodeLost(node=node))
        self.at(self.now + down_s, lambda: self._return(node))

    def _return(self, node: NodeId) -> None:
        self.down.discard(node)
        self.tell(ev.NodeReturned(node=node))
