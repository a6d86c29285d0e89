"""Whether the settings ask instances to release their memory: while training runs, or while instances of another
parallel size work."""

from __future__ import annotations

from tailrace.config.settings import Settings
from tailrace.policies.strategies import ParallelSizes, Scaling


def releases_memory(settings: Settings) -> bool:
    """Whether instances release their memory: all of them, with `colocated`, or those that are lent to training."""
    return settings.schedule.placement == "colocated" or may_lend(settings)


def may_lend(settings: Settings) -> bool:
    """Whether an instance may be lent: it is asked for, and there are others, and another replica."""
    asked = settings.schedule
    is_possible = (
        asked.placement != "disaggregated" and min(settings.rollout.num_instances, settings.trainer.num_replicas) > 1
    )
    return is_possible and asked.resolved().lending is not Scaling.NEVER


def may_park(settings: Settings) -> bool:
    """Whether instances of another parallel size may wait with released memory, if engine and machine allow it."""
    return changes_size(settings) and settings.rollout.park != "never" and settings.runtime != "ray"


def changes_size(settings: Settings) -> bool:
    """Whether the parallel size of the instances may change."""
    has_sizes = len({*settings.rollout.parallel_sizes}) > 1
    return has_sizes and settings.schedule.resolved().parallelism is not ParallelSizes.FIXED
