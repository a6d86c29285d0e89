"""Whether the settings ask instances to release their memory, while training runs or while instances of another
parallel size work, and training between two pieces."""

from __future__ import annotations

from tailrace.config.run_preset import no_places, run_preset
from tailrace.config.settings import Settings
from tailrace.policies.strategies import ParallelSizes, Scaling


def releases_memory(settings: Settings) -> bool:
    """Whether instances release their memory: all of them, with `colocated`, or those that are lent to training."""
    return settings.schedule.placement == "colocated" or may_lend(settings)


def leaves_between_pieces(settings: Settings) -> bool:
    """Whether training gives memory back between two pieces of a step: gradients wait on the host, or a lent instance
    may come back to its device before the step is taken, because all others were lost."""
    return settings.trainer.gradients_device == "cpu" or lends_colocated(settings)


def lends_colocated(settings: Settings) -> bool:
    """Whether an instance may be lent whose memory and the trainer's do not fit side by side."""
    return settings.schedule.placement == "colocated" and may_lend(settings)


def may_lend(settings: Settings) -> bool:
    """Whether an instance may be lent: it is asked for, and there are others, and another replica."""
    return no_places(settings) is None and run_preset(settings).lending is not Scaling.NEVER


def may_park(settings: Settings) -> bool:
    """Whether instances of another parallel size may wait with released memory, if engine and machine allow it."""
    return changes_size(settings) and settings.rollout.park != "never" and settings.runtime != "ray"


def changes_size(settings: Settings) -> bool:
    """Whether the parallel size of the instances may change."""
    has_sizes = len({*settings.rollout.parallel_sizes}) > 1
    return has_sizes and run_preset(settings).parallelism is not ParallelSizes.FIXED
