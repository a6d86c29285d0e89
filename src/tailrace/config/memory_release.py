"""Whether the settings ask instances to release their memory while training runs."""

from __future__ import annotations

from tailrace.config.settings import Settings
from tailrace.policies.strategies import Scaling


def releases_memory(settings: Settings) -> bool:
    """Whether instances release their memory: all of them, with `colocated`, or those that are lent to training."""
    asked = settings.schedule
    return asked.placement == "colocated" or asked.resolved().lending is not Scaling.NEVER
