"""The simulated cluster: the world performs every command of the scheduler and answers it in virtual time.

It checks what no real cluster could do (two jobs that compute on one group, a job whose state is not there, more
rollout devices than there are) and raises ``SchedulerError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import ALL_PARTS
from tailrace.cluster.settings import NodeGroup
from tailrace.sim.cluster.faults import Fault, JobCrashes, NodeFails, PhaseSlows
from tailrace.sim.cluster.group_memory import Bandwidths
from tailrace.sim.cluster.job_model import JobPlan, SimJob
from tailrace.sim.cluster.sim_group import SchedulerError, SimGroup
from tailrace.sim.driver import Agenda

_DIRECTIONS = {
    do.Offload: ev.Direction.OFFLOAD,
    do.Load: ev.Direction.LOAD,
    do.Prefetch: ev.Direction.PREFETCH,
}


class World:
    def __init__(
        self,
        groups: Sequence[NodeGroup],
        plans: Sequence[JobPlan],
        agenda: Agenda,
        deliver: Callable[[ev.Event], None],
        *,
        bandwidths: Bandwidths,
        rollout_devices: int,
        faults: Iterable[Fault] = (),
    ) -> None:
        """``deliver``: gives an event to the scheduler and performs its commands."""
        self._agenda, self._deliver = agenda, deliver
        self.groups = {group.id: SimGroup(group, bandwidths, agenda, self._post) for group in groups}
        self.jobs = {plan.spec.id: SimJob(plan, agenda, self._post) for plan in plans}
        self.admitted_at: dict[JobId, float] = {}
        self._group_of: dict[JobId, NodeGroupId] = {}
        self._shift_s: dict[JobId, float] = {}
        self._rollout_devices = rollout_devices
        self._num_unfinished = len(plans)
        for plan in plans:
            agenda.at(plan.submitted, partial(deliver, ev.JobSubmitted(job=plan.spec)))
        for fault in faults:
            agenda.at(fault.at, partial(self._strike, fault))

    @property
    def is_over(self) -> bool:
        """Whether every job has ended or was refused."""
        return self._num_unfinished == 0

    def perform(self, command: do.Command) -> None:
        match command:
            case do.Place(job=job, group=group, shift_s=shift_s):
                self._enter(job, group, is_remote=False)
                self._shift_s[job] = shift_s
            case do.Admit(job=job):
                self._admit(self.jobs[job])
            case do.Refuse(is_name_taken=True):
                raise SchedulerError(f"{command.job} is submitted once, and its name shall be taken")
            case do.Refuse(job=job, reason=reason):
                self.jobs[job].refuse(reason)
                self._num_unfinished -= 1
            case do.Offload() | do.Load() | do.Prefetch():
                parts = ALL_PARTS if isinstance(command, do.Offload) else command.parts
                self.groups[command.group].move_state(command.job, _DIRECTIONS[type(command)], command.transfer, parts)
            case do.GrantLease(job=job, group=group, num_operations=num_operations, lease=lease):
                self.groups[group].grant(self.jobs[job], num_operations, lease)
            case do.Hold(job=job, group=group, until=until):
                self.groups[group].hold(job, until)
            case do.Move(job=job, source=source, target=target, shift_s=shift_s):
                self._move(self.jobs[job], source, target, shift_s)
            case _:
                raise TypeError(f"unknown command {command!r}")

    def close(self) -> None:
        """Account for the time up to the end."""
        for group in self.groups.values():
            group.close()

    def _enter(self, job: JobId, group: NodeGroupId, *, is_remote: bool) -> None:
        wanted, found = self.jobs[job].plan.spec.train_devices, self.groups[group].facts.devices
        if wanted != found:
            raise SchedulerError(f"{job} trains on {wanted} devices, but {group} has {found}")
        self.groups[group].enter(self.jobs[job], is_remote=is_remote)
        self._group_of[job] = group

    def _admit(self, job: SimJob) -> None:
        if job.id in self.admitted_at or job.id not in self._group_of:
            raise SchedulerError(f"{job.id} is admitted twice, or before it has a node group")
        self._rollout_devices -= job.plan.spec.rollout_devices
        if self._rollout_devices < 0:
            raise SchedulerError(f"{job.id} is admitted, but {-self._rollout_devices} rollout devices are missing")
        self.admitted_at[job.id] = self._agenda.now
        job.start(self._shift_s[job.id])

    def _move(self, job: SimJob, source: NodeGroupId, target: NodeGroupId, shift_s: float) -> None:
        if job.is_computing:
            raise SchedulerError(f"{job.id} shall move from {source} to {target} while it computes")
        if self._group_of.pop(job.id, None) is not None:
            self.groups[source].leave(job.id)
        self._enter(job.id, target, is_remote=True)
        job.shift(shift_s)

    def _post(self, event: ev.Event) -> None:
        """Deliver the event now, after all items that are already due."""
        deliver = self._end_job if isinstance(event, ev.JobEnded) else self._deliver
        self._agenda.at(self._agenda.now, partial(deliver, event))

    def _end_job(self, event: ev.Event) -> None:
        """The job leaves its node group and its devices in the moment in which the scheduler hears of it."""
        assert isinstance(event, ev.JobEnded)
        job = event.job
        if (group := self._group_of.pop(job, None)) is not None:
            self.groups[group].leave(job)
        if job in self.admitted_at:
            self._rollout_devices += self.jobs[job].plan.spec.rollout_devices
        self._deliver(event)
        self._num_unfinished -= 1

    def _strike(self, fault: Fault) -> None:
        match fault:
            case JobCrashes(job=name):
                job = self.jobs[name]
                if not job.is_over and job.plan.submitted <= self._agenda.now:
                    job.end("crashed")
            case PhaseSlows(job=name, factor=factor):
                self.jobs[name].slow_down(factor)
            case NodeFails(node=node, down_s=down_s):
                group = next(group for group in self.groups.values() if node in group.facts.nodes)
                for lost in group.lose(node):
                    group.leave(lost)
                    self._group_of.pop(lost)
                self._deliver(ev.NodeLost(node=node))
                self._agenda.after(down_s, lambda: self._restore(group, fault))

    def _restore(self, group: SimGroup, fault: NodeFails) -> None:
        group.restore(fault.node)
        self._deliver(ev.NodeReturned(node=fault.node))
