"""The schedule: the settings of a run that the core reads."""

from tailrace.core.schedule.choices import EpochEnd, Leftovers, OnStuck, Placement, VersionCap
from tailrace.core.schedule.coordination import Coordination, Strategy
from tailrace.core.schedule.schedule import EvalSet, Limits, Schedule

__all__ = [
    "Coordination",
    "EpochEnd",
    "EvalSet",
    "Leftovers",
    "Limits",
    "OnStuck",
    "Placement",
    "Schedule",
    "Strategy",
    "VersionCap",
]
