"""How often a rollout instance reports the progress of its unfinished responses, and how often reports are read.

Every report is written to the journal, so its cost must not grow with the size of the run. All instances together
report at most ``PROGRESS_PER_S`` responses per second, in at most ``REPORTS_PER_S`` reports: the more responses or
instances there are, the longer the interval. The interval has an upper limit. It limits how much work is lost with an
instance, and no report that is on time is displayed as a wait.

The controller reads reports together, because waking it costs more than most reports. The more instances there are, the
more reports come in a given time, and the longer it may wait for others.
"""

from __future__ import annotations

PROGRESS_PER_S = 512.0
"""128 responses in flight are reported every 0.25 s, 2,048 of them every 4 s."""
REPORTS_PER_S = 16.0
"""4 instances report every 0.25 s, 64 every 4 s, also when each has only one response left."""
LONGEST_INTERVAL_S = 5.0
"""Half the age at which a wait is shown."""


def progress_interval_s(num_live: int, *, shortest_s: float, num_instances: int) -> float:
    """Return the seconds between two reports of an instance with ``num_live`` responses. Assumes that the other
    instances have as many."""
    needed_s = max(num_live * num_instances / PROGRESS_PER_S, num_instances / REPORTS_PER_S)
    return max(shortest_s, min(needed_s, LONGEST_INTERVAL_S))


GATHER_S_PER_INSTANCE = 0.1 / 64
LONGEST_GATHER_S = 0.1
"""Short beside the seconds that a response takes where there are many instances."""


def gather_s(num_instances: int) -> float:
    """Return the seconds for which the controller gathers messages of the instances."""
    return min(num_instances * GATHER_S_PER_INSTANCE, LONGEST_GATHER_S)
