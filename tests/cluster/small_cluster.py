"""A scheduler of a few node groups, told what happens by hand."""

from __future__ import annotations

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.demand.trace import DemandSegment, DemandTrace
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, NodeGroup


def trace(period_s: float, busy_s: float) -> DemandTrace:
    return DemandTrace(period_s=period_s, segments=(DemandSegment(offset_s=0.0, duration_s=busy_s),))


def group(name: str, devices: int = 8, **memory: int) -> NodeGroup:
    return NodeGroup(id=NodeGroupId(name), nodes=(NodeId(f"{name}-node"),), devices=devices, **memory)


def cluster(*groups: NodeGroup, rollout_devices: int = 100, **rules: object) -> Scheduler:
    started = ev.ClusterStarted(
        rules=ClusterRules(**rules),  # type: ignore[arg-type]
        groups=groups or (group("g0"),),
        rollout_devices=rollout_devices,
    )
    return Scheduler(started)


def submit(scheduler: Scheduler, name: str, *, now: float = 0.0, train_devices: int = 8, **spec: object) -> bool:
    """Whether the job is admitted at once."""
    job = JobSpec(id=JobId(name), train_devices=train_devices, **spec)  # type: ignore[arg-type]
    commands = scheduler.handle(ev.JobSubmitted(job=job), now=now)
    scheduler.check()
    return do.Admit(job=JobId(name)) in commands


def end(scheduler: Scheduler, name: str, *, now: float) -> list[str]:
    """The jobs that are admitted because this one ended."""
    commands = scheduler.handle(ev.JobEnded(job=JobId(name)), now=now)
    scheduler.check()
    return [command.job for command in commands if isinstance(command, do.Admit)]


def run_phase(scheduler: Scheduler, name: str, *, now: float, seconds: float = 10.0) -> list[do.Command]:
    """A phase of 10 s is asked for, waits for nothing, and takes ``seconds``. Returns what follows from its end."""
    commands = scheduler.handle(ev.PhaseAsked(job=JobId(name), operations_s=(10.0,)), now=now)
    while transfers := [command for command in commands if isinstance(command, do.Offload | do.Load)]:
        [command] = transfers
        measured = ev.TransferMeasured(
            job=command.job,
            group=command.group,
            transfer=command.transfer,
            direction=ev.Direction.LOAD if isinstance(command, do.Load) else ev.Direction.OFFLOAD,
            num_bytes=0,
            seconds=0.0,
        )
        commands = scheduler.handle(measured, now=now)
    commands = scheduler.handle(ev.PhaseEnded(job=JobId(name), seconds=seconds), now=now + seconds)
    scheduler.check()
    return commands
