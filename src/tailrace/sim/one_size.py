"""The schedule of a recorded run without its parallel sizes.

Costs fitted to a journal are those of one parallel size. A run that worked with several is refused; of a run that could
have used several and worked with one, the others are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tailrace.core.commands import StartInstance
from tailrace.core.journal import Entry
from tailrace.core.schedule import Parallelism, Schedule

LEFT_OUT = "Changes of the parallel size are left out: the run worked with one size, whose costs are known."


def of_one_size(schedule: Schedule, entries: Iterable[Entry]) -> Schedule:
    """Return the schedule with the one size that the run worked with; ``ValueError`` if it was not the only one."""
    known = schedule.parallelism
    if not known.layouts:
        return schedule
    if len(known.layouts) > 1 and (known.strategy != Parallelism().strategy or len(_started(entries)) > 1):
        sizes = [layout.size for layout in known.layouts]
        raise ValueError(
            f"the run changes the parallel size of its instances ({sizes}); costs of several parallel sizes cannot be"
            " told apart yet from one journal"
        )
    return replace(schedule, parallelism=Parallelism())


def has_other_sizes(schedule: Schedule) -> bool:
    """Whether a recorded schedule has sizes that ``of_one_size`` leaves out."""
    return len(schedule.parallelism.layouts) > 1


def _started(entries: Iterable[Entry]) -> set[int]:
    """Return the sizes of the instances that were started."""
    return {each.size for entry in entries for each in entry.commands if isinstance(each, StartInstance)}
