"""The jobs room: every job that has not ended, its stage, and which of them are queued or run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.jobs.record import JobRecord, Stage


@dataclass(slots=True, kw_only=True)
class Jobs:
    """State of the jobs room."""

    records: dict[JobId, JobRecord] = field(default_factory=dict)
    """Every job that has not ended. What has ended is forgotten, so its name may be used again."""
    queue: dict[JobId, JobRecord] = field(default_factory=dict)
    """Jobs that wait for admission, in order of submission."""
    running: dict[JobId, JobRecord] = field(default_factory=dict)
    """Admitted jobs that have not ended."""
    num_submitted: int = 0

    # Questions

    def named(self, name: JobId) -> JobRecord:
        return self.records[name]

    def find(self, name: JobId) -> JobRecord | None:
        return self.records.get(name)

    def find_live(self, name: JobId) -> JobRecord | None:
        return self.running.get(name)

    def every(self) -> Collection[JobRecord]:
        return self.records.values()

    def live(self) -> Collection[JobRecord]:
        return self.running.values()

    def queued(self) -> Collection[JobRecord]:
        """Jobs that wait for admission, in order of submission."""
        return self.queue.values()

    def displaced(self) -> list[JobRecord]:
        """Jobs whose node group was lost and that have no other one, in order of submission."""
        return sorted((job for job in self.running.values() if job.displaced is not None), key=lambda job: job.number)

    def is_tenant_queued(self, tenant: TenantId) -> bool:
        return any(job.tenant == tenant for job in self.queue.values())

    # Notices

    def submit(self, spec: JobSpec, now: float) -> JobRecord:
        self.num_submitted += 1
        job = JobRecord(spec=spec, number=self.num_submitted, submitted_at=now, trace=spec.trace)
        self.records[spec.id] = job
        return job

    def enqueue(self, job: JobRecord) -> None:
        self.queue[job.id] = job

    def begin(self, job: JobRecord, charged_device_s: float, now: float) -> None:
        """The job is admitted."""
        del self.queue[job.id]
        job.stage = Stage.PROFILING if job.trace is None else Stage.RUNNING
        job.admitted_at, job.charged_device_s = now, charged_device_s
        self.running[job.id] = job

    def learn(self, job: JobRecord, trace: DemandTrace | None) -> None:
        """The demand of the job is known now, or known better."""
        job.trace = trace
        if job.stage is Stage.PROFILING:
            job.stage = Stage.RUNNING

    def forget(self, job: JobRecord) -> None:
        """The job has ended."""
        for jobs in (self.records, self.queue, self.running):
            jobs.pop(job.id, None)
