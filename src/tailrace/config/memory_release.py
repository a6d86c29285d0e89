"""Whether the settings ask instances to release their memory while training runs."""

from __future__ import annotations

from tailrace.config.run_preset import no_places, run_preset
from tailrace.config.settings import Settings
from tailrace.policies.strategies import Scaling


def releases_memory(settings: Settings) -> bool:
    """Whether instances release their memory: all of them, with `colocated`, or those that are lent to training."""
    return settings.schedule.placement == "colocated" or may_lend(settings)


def may_lend(settings: Settings) -> bool:
    """Whether an instance may be lent: it is asked for, and there are others, and another replica."""
    return no_places(settings) is None and run_preset(settings).lending is not Scaling.NEVER
