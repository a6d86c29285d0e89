"""One simulated node group: it computes for one job at a time, and moves the state of jobs, one transfer at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tailrace.cluster.events import Direction, Event, TransferMeasured
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import ALL_PARTS, Parts
from tailrace.cluster.settings import NodeGroup
from tailrace.sim.cluster.group_memory import Bandwidths, DevicesFull, GroupMemory, Shifts
from tailrace.sim.cluster.job_model import SimJob
from tailrace.sim.cluster.meter import GroupMeter
from tailrace.sim.driver import Agenda


class SchedulerError(RuntimeError):
    """The scheduler wants something that a cluster cannot do."""


@dataclass(frozen=True, slots=True)
class WorkSpan:
    """A stretch of time in which a node group worked for a job."""

    group: NodeGroupId
    job: JobId
    kind: str
    """``train``, ``offload``, ``load``, ``prefetch`` or ``hold``."""
    start: float
    end: float


@dataclass(slots=True)
class _Lease:
    job: SimJob
    start: float


@dataclass(slots=True)
class _Transfer:
    job: JobId
    direction: Direction
    number: int
    parts: Parts
    start: float | None = None
    shifts: Shifts = Shifts()


@dataclass(slots=True)
class _Hold:
    job: JobId
    start: float
    until: float


class SimGroup:
    def __init__(self, facts: NodeGroup, bandwidths: Bandwidths, agenda: Agenda, post: Callable[[Event], None]) -> None:
        self.facts, self._bandwidths, self._agenda, self._post = facts, bandwidths, agenda, post
        self.meter = GroupMeter(facts.devices)
        self.memory = GroupMemory(facts)
        self.spans: list[WorkSpan] = []
        self.num_switches = 0
        self.bytes_moved = 0
        self._lost: set[NodeId] = set()
        self._lease: _Lease | None = None
        self._hold: _Hold | None = None
        self._transfers: deque[_Transfer] = deque()
        """The first one is in progress."""
        self._last_job: JobId | None = None

    @property
    def id(self) -> NodeGroupId:
        return self.facts.id

    @property
    def computed_s(self) -> float:
        return sum(span.end - span.start for span in self.spans if span.kind == "train")

    def enter(self, job: SimJob, *, is_remote: bool) -> None:
        self._settle()
        self.meter.jobs.append(job.id)
        self.memory.enter(job.id, job.plan.spec.state, is_remote=is_remote)

    def leave(self, job: JobId) -> None:
        """The job ends, crashes or moves away: nothing of it is left."""
        self._settle()
        if job in self.meter.jobs:
            self.meter.jobs.remove(job)
        if self._lease is not None and self._lease.job.id == job:
            self._close_lease()
        if self._hold is not None and self._hold.job == job:
            self._close_hold(self._agenda.now)
        is_moving = bool(self._transfers) and self._transfers[0].job == job
        if is_moving:
            self._note_transfer(self._transfers[0])
        self._transfers = deque(transfer for transfer in self._transfers if transfer.job != job)
        self.memory.leave(job)
        if is_moving:
            self._begin_transfer()

    def grant(self, job: SimJob, num_operations: int, lease: int) -> None:
        self._check_grant(job)
        self._settle()
        self._end_hold()
        seconds = job.start_lease(num_operations, lease)
        if self._last_job not in (None, job.id):
            self.num_switches += 1
        self._last_job = job.id
        current = self._lease = _Lease(job, self._agenda.now)
        self._agenda.after(seconds, lambda: self._end_lease(current, seconds))

    def move_state(self, job: JobId, direction: Direction, number: int, parts: Parts = ALL_PARTS) -> None:
        if direction is Direction.OFFLOAD and self._lease is not None and self._lease.job.id == job:
            raise SchedulerError(f"{self.id}: the state of {job} shall be offloaded while it computes")
        if job not in self.meter.jobs:
            raise SchedulerError(f"{self.id}: {direction} of {job}, which does not belong to the group")
        self._settle()
        if direction is not Direction.PREFETCH:
            self._end_hold()  # its job has asked, and needs more of its state
        self._transfers.append(_Transfer(job, direction, number, parts))
        if len(self._transfers) == 1:
            self._begin_transfer()

    def hold(self, job: JobId, until: float) -> None:
        if self._lease is not None:
            raise SchedulerError(f"{self.id} shall be held for {job} while {self._lease.job.id} computes")
        self._settle()
        self._end_hold()
        self._hold = _Hold(job, self._agenda.now, until)

    def lose(self, node: NodeId) -> list[JobId]:
        """A node is lost: everything in progress is lost too. Return the jobs that were here."""
        self._settle()
        self._lost.add(node)
        if self._lease is not None:
            job = self._lease.job
            self._close_lease()
            job.lose_lease()
        self._end_hold()
        if self._transfers:
            self._note_transfer(self._transfers[0])
        self._transfers.clear()
        self.memory.lose_all()
        self._last_job = None
        return list(self.meter.jobs)

    def restore(self, node: NodeId) -> None:
        self._lost.discard(node)

    def close(self) -> None:
        """Account for the time up to the end of the simulation."""
        self._settle()

    def _check_grant(self, job: SimJob) -> None:
        if self._lease is not None:
            raise SchedulerError(f"{self.id}: a lease for {job.id} while {self._lease.job.id} computes")
        if self._lost:
            raise SchedulerError(f"{self.id}: a lease for {job.id}, but nodes are lost: {sorted(self._lost)}")
        if job.id not in self.meter.jobs:
            raise SchedulerError(f"{self.id}: a lease for {job.id}, which does not belong to the group")
        if not self.memory.is_resident(job.id, job.parts):
            raise SchedulerError(f"{self.id}: a lease for {job.id}, whose state is not on the devices")

    def _end_lease(self, lease: _Lease, seconds: float) -> None:
        if self._lease is not lease or lease.job.is_over:  # lost, or crashed before or in this moment
            return
        self._settle()
        self._close_lease()
        lease.job.lease_ended(seconds)

    def _close_lease(self) -> None:
        assert self._lease is not None
        self._note(self._lease.job.id, "train", self._lease.start)
        self._lease = None

    def _begin_transfer(self) -> None:
        if not self._transfers:
            return
        transfer = self._transfers[0]
        try:
            transfer.shifts = self.memory.plan(transfer.job, transfer.direction, transfer.parts)
        except DevicesFull as error:
            raise SchedulerError(str(error)) from None
        transfer.start = self._agenda.now
        self._agenda.after(transfer.shifts.seconds(self._bandwidths), lambda: self._end_transfer(transfer))

    def _end_transfer(self, transfer: _Transfer) -> None:
        if not self._transfers or self._transfers[0] is not transfer:  # lost
            return
        self._settle()
        self._note_transfer(transfer)
        self._transfers.popleft()
        self.memory.apply(transfer.job, transfer.direction, transfer.shifts)
        self.bytes_moved += transfer.shifts.num_bytes
        measured = TransferMeasured(
            job=transfer.job,
            group=self.id,
            transfer=transfer.number,
            direction=transfer.direction,
            num_bytes=transfer.shifts.num_bytes,
            seconds=transfer.shifts.seconds(self._bandwidths),
        )
        self._post(measured)
        self._begin_transfer()

    def _note_transfer(self, transfer: _Transfer) -> None:
        if transfer.start is not None:
            self._note(transfer.job, transfer.direction.value, transfer.start)

    def _end_hold(self) -> None:
        if self._hold is not None:
            self._close_hold(self._agenda.now)

    def _close_hold(self, end: float) -> None:
        assert self._hold is not None
        self._note(self._hold.job, "hold", self._hold.start, end)
        self._hold = None

    def _note(self, job: JobId, kind: str, start: float, end: float | None = None) -> None:
        end = self._agenda.now if end is None else end
        if end > start:
            self.spans.append(WorkSpan(self.id, job, kind, start, end))

    def _settle(self) -> None:
        """Account for the time until now: call before anything changes."""
        now = self._agenda.now
        hold = self._hold
        if hold is not None and hold.until < now:
            self.meter.pass_time(hold.until, self._user())
            self._close_hold(hold.until)
        self.meter.pass_time(now, self._user())

    def _user(self) -> JobId | None:
        if self._lease is not None:
            return self._lease.job.id
        if self._transfers and self._transfers[0].direction is not Direction.PREFETCH:
            return self._transfers[0].job
        return None if self._hold is None else self._hold.job
