"""Orders in which jobs are placed. How many groups they need depends on it, and no order is always the best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.job_spec import JobSpec
from tailrace.cluster.settings import ClusterRules, Policy

MOST_ORDERS = 32
"""Orders that are tried for few jobs."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_MOST_PLACES = 4_000
"""Jobs that are placed in all orders together: with many jobs, few orders are tried."""


def orders(jobs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    """The order of the jobs as they are given, then others: by duty, by period, and mixed, always in the same ways."""
    seen = set()
    for order in _candidates(jobs):
        if (names := tuple(job.id for job in order)) not in seen:
            seen.add(names)
            yield order


def _candidates(jobs: Sequence[JobSpec]) -> Iterator[Sequence[JobSpec]]:
    yield jobs
    yield sorted(jobs, key=lambda job: -_trace(job).duty)
    yield sorted(jobs, key=lambda job: (_trace(job).period_s, -_trace(job).duty))
    yield sorted(jobs, key=lambda job: (-_trace(job).period_s, -_trace(job).duty))
    for number in range(1, min(MOST_ORDERS, _MOST_PLACES // max(len(jobs), 1)) - 3):
        places = [(index + 1) * number * _GOLDEN % 1.0 for index in range(len(jobs))]  # far from each other
        yield [jobs[index] for index in sorted(range(len(jobs)), key=places.__getitem__)]


def fewest_groups(jobs: Sequence[JobSpec], rules: ClusterRules) -> int:
    """A number of groups that no plan can do with less of."""
    if rules.policy is Policy.ISOLATED:
        return len(jobs)
    shared = [_trace(job).duty for job in jobs if _trace(job).duty <= rules.max_duty]
    by_duty = math.ceil(math.fsum(shared) / rules.max_duty - 1e-9)
    return len(jobs) - len(shared) + max(math.ceil(len(shared) / rules.max_jobs_per_group), by_duty)


def _trace(job: JobSpec) -> DemandTrace:
    assert job.trace is not None, f"job {job.id} has no trace"
    return job.trace
