"""A minimal scheduler: queued jobs in turn, one job to a node group unless ``shares``, phases first come, first served.

It follows the same events and commands as the real one, so that the simulated world can be tested without it.
"""

from __future__ import annotations

from itertools import count

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.ids import JobId, NodeGroupId
from tailrace.cluster.job_spec import JobSpec


class FirstCome:
    def __init__(self, first: ev.ClusterStarted, *, jobs_per_group: int = 1) -> None:
        self._groups = {group.id: group for group in first.groups}
        self._rules, self._most = first.rules, jobs_per_group
        self._members: dict[NodeGroupId, list[JobId]] = {group.id: [] for group in first.groups}
        self._down: set[NodeGroupId] = set()
        self._resident: dict[NodeGroupId, JobId | None] = {}
        self._turn: dict[NodeGroupId, JobId] = {}
        """Who computes, or whose state is being loaded."""
        self._asked: dict[JobId, ev.PhaseAsked] = {}
        self._queue: list[JobSpec] = []
        self._displaced: list[tuple[JobId, NodeGroupId]] = []
        self._transfers = count(1)

    def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
        match event:
            case ev.JobSubmitted(job=spec):
                self._queue.append(spec)
            case ev.PhaseAsked(job=job):
                self._asked[job] = event
            case ev.PhaseEnded(job=job):
                self._asked.pop(job)
                self._turn.pop(self._group_of(job))
            case ev.TransferMeasured(job=job, group=group, direction=ev.Direction.LOAD):
                self._resident[group] = job
                return [self._grant(group, job)]
            case ev.JobEnded(job=job):
                self._forget(job)
            case ev.NodeLost(node=node):
                self._lose(next(group.id for group in self._groups.values() if node in group.nodes))
            case ev.NodeReturned(node=node):
                self._down -= {group.id for group in self._groups.values() if node in group.nodes}
        return [*self._return_displaced(), *self._place(), *self._serve()]

    def _group_of(self, job: JobId) -> NodeGroupId:
        return next(group for group, members in self._members.items() if job in members)

    def _forget(self, job: JobId) -> None:
        self._asked.pop(job, None)
        for group, members in self._members.items():
            if job in members:
                members.remove(job)
                if self._resident.get(group) == job:
                    self._resident[group] = None
                if self._turn.get(group) == job:
                    del self._turn[group]

    def _lose(self, group: NodeGroupId) -> None:
        self._down.add(group)
        self._displaced += [(job, group) for job in self._members[group]]
        self._members[group] = []
        self._resident[group] = None
        self._turn.pop(group, None)

    def _return_displaced(self) -> list[do.Command]:
        commands: list[do.Command] = []
        for job, source in list(self._displaced):
            for group, members in self._members.items():
                if group not in self._down and len(members) < self._most:
                    members.append(job)
                    self._displaced.remove((job, source))
                    commands.append(do.Move(job=job, source=source, target=group, shift_s=0.0))
                    break
        return commands

    def _place(self) -> list[do.Command]:
        commands: list[do.Command] = []
        for spec in list(self._queue):
            for group, members in self._members.items():
                has_room = group not in self._down and len(members) < self._most
                if has_room and self._groups[group].devices == spec.train_devices:
                    members.append(spec.id)
                    self._queue.remove(spec)
                    commands += [do.Place(job=spec.id, group=group, shift_s=0.0), do.Admit(job=spec.id)]
                    break
        return commands

    def _serve(self) -> list[do.Command]:
        commands: list[do.Command] = []
        for group, members in self._members.items():
            waiting = [job for job in self._asked if job in members]
            if group in self._turn or not waiting:
                continue
            job = self._turn[group] = waiting[0]
            if (resident := self._resident.get(group)) == job:
                commands.append(self._grant(group, job))
            else:
                if resident is not None:
                    commands.append(do.Offload(job=resident, group=group, transfer=next(self._transfers)))
                commands.append(do.Load(job=job, group=group, transfer=next(self._transfers)))
        return commands

    def _grant(self, group: NodeGroupId, job: JobId) -> do.Command:
        count = len(self._asked[job].operations_s)
        return do.GrantLease(job=job, group=group, num_operations=count)
