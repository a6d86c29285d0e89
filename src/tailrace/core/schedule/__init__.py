"""The schedule: the settings of a run that the core reads."""

from tailrace.core.schedule.case_time import CaseTime
from tailrace.core.schedule.choices import EpochEnd, Leftovers, OnStuck, Placement, Stream, VersionCap
from tailrace.core.schedule.coordination import Coordination
from tailrace.core.schedule.lending import Lending, SharedPlace
from tailrace.core.schedule.parallelism import Division, Layout, Parallelism
from tailrace.core.schedule.schedule import EDITION, EvalSet, Limits, Schedule

__all__ = [
    "EDITION",
    "CaseTime",
    "Coordination",
    "Division",
    "EpochEnd",
    "EvalSet",
    "Layout",
    "Leftovers",
    "Lending",
    "Limits",
    "OnStuck",
    "Parallelism",
    "Placement",
    "Schedule",
    "SharedPlace",
    "Stream",
    "VersionCap",
]
