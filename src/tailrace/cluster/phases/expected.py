"""When the jobs of a node group will ask for their next phases: from what a job said itself, or else from its trace."""

from __future__ import annotations

from tailrace.cluster.arbitration.expected import ExpectedPhase
from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.groups.record import GroupRecord
from tailrace.cluster.jobs.record import JobRecord
from tailrace.cluster.settings import ClusterRules


def expected_phases(group: GroupRecord, rules: ClusterRules) -> list[ExpectedPhase]:
    """The next phases of the group's jobs that neither wait nor compute, as far as they can be foretold."""
    if not rules.predict_switches:
        return []
    found = [_expected(job, rules) for job in group.jobs.values() if job.log.phase is None]
    return [phase for phase in found if phase is not None]


def _expected(job: JobRecord, rules: ClusterRules) -> ExpectedPhase | None:
    asks_at = job.log.next_asks_at if job.log.next_asks_at is not None else job.asks_at
    if asks_at is None or job.trace is None:
        return None
    return ExpectedPhase(
        owner=JobState(job.id, job.spec.state, job.log.parts_of.get(job.segment_number, job.spec.device_parts)),
        later_parts=job.log.known_parts,
        tenant=job.tenant,
        asks_at=asks_at,
        given_up_at=asks_at + rules.drift * job.trace.period_s,
    )
