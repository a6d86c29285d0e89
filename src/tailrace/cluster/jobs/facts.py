"""Events of the jobs room: jobs are submitted, profiled, and end."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster.admission import order
from tailrace.cluster.admission.claims import drop_claim
from tailrace.cluster.groups.record import fits
from tailrace.cluster.groups.seating import leave_seat, open_group
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.phases import leases
from tailrace.cluster.rooms import Rooms


def job_submitted(rooms: Rooms, event: ev.JobSubmitted, now: float) -> Iterator[do.Command]:
    spec = event.job
    if rooms.jobs.find(spec.id) is not None:
        yield do.Refuse(job=spec.id, reason=f"another job is called {spec.id}, and has not ended", is_name_taken=True)
    elif (reason := _obstacle(rooms, spec)) is not None:
        yield do.Refuse(job=spec.id, reason=reason)
    else:
        order.enter(rooms, rooms.jobs.submit(spec, now))


def _obstacle(rooms: Rooms, spec: JobSpec) -> str | None:
    """Why the job can never run here; None: it can."""
    sized = [group.facts for group in rooms.groups.every() if group.facts.devices == spec.train_devices]
    if not sized:
        return f"it trains on {spec.train_devices} devices, and no node group has that many"
    num_devices = rooms.admission.num_rollout_devices
    if spec.rollout_devices > num_devices:
        return f"it needs {spec.rollout_devices} rollout devices, the cluster has {num_devices}"
    if not any(fits(group, spec.state, parts=spec.device_parts) for group in sized):
        return f"its state of {spec.state.of(spec.device_parts):,} bytes does not fit on the devices of any node group"
    return None


def job_profiled(rooms: Rooms, event: ev.JobProfiled, now: float) -> Iterator[do.Command]:
    """The demand of a job is known now, or known better."""
    job = rooms.jobs.find(event.job)
    if job is None or job.trace == event.trace:
        rooms.watch.ignore()
        return
    rooms.jobs.learn(job, event.trace)
    rooms.rearranging.job_profiled(job)
    rooms.admission.look_again()
    if job.seat is not None:
        rooms.groups.recount(job.seat.group)
        open_group(rooms, job.seat.group)  # it may need less of its group than was believed
    yield from ()


def job_ended(rooms: Rooms, event: ev.JobEnded, now: float) -> Iterator[do.Command]:
    job = rooms.jobs.find(event.job)
    if job is None:
        rooms.watch.ignore()
        return
    order.settle(rooms, job, now)
    group = leave_seat(rooms, job)
    _free(rooms, job)
    if group is not None:
        yield from leases.leave(rooms, group, job.id, now)


def _free(rooms: Rooms, job: JobRecord) -> None:
    """Everything that the job holds is free again, and the job is forgotten."""
    if job.is_live:
        rooms.admission.give_back_devices(job.spec.rollout_devices)
    drop_claim(rooms, job.id)
    rooms.admission.look_again()
    rooms.jobs.forget(job)
