"""Do long prompts get their turn? Sentences about the fates of a run; none when all is well.

Schedules that prefer what finishes first may put off what takes long. Two signs of it: a prompt that waits in the long
queue for more rounds than the schedule's own rhythm explains, and trained responses that are much shorter than
generated ones.
"""

from __future__ import annotations

from math import ceil
from statistics import fmean

from tailrace.core.schedule import Leftovers, Schedule
from tailrace.observe.fates import DEFERRED, Fates

_NUM_STEPS = 10
"""The newest steps that lengths are compared over."""
_MIN_LENGTH_RATIO = 0.5


def alarms(fates: Fates, schedule: Schedule) -> list[str]:
    return [*_waiting_prompts(fates, schedule), *_lengths(fates)]


def _waiting_prompts(fates: Fates, schedule: Schedule) -> list[str]:
    surplus = min([schedule.num_launched, *(groups for groups, _ in schedule.trials)]) - schedule.batch_size
    if schedule.leftovers is not Leftovers.DEFER or not surplus:
        return []
    bound = 2 * ceil(schedule.batch_size / surplus) + 2
    waiting = [fate for fate in fates.groups.values() if fate.state == DEFERRED]
    ages = {fate.group: fates.version - fate.offered_version for fate in waiting}
    late = [group for group, age in ages.items() if age > bound]
    if not late:
        return []
    oldest = max(late, key=lambda group: ages[group])
    return [f"{len(late)} prompts wait in the long queue for more than {bound} steps; {oldest} for {ages[oldest]}"]


def _lengths(fates: Fates) -> list[str]:
    steps = fates.lengths[-_NUM_STEPS:]
    generated = [length for step in steps for length in step.generated]
    trained = [length for step in steps for length in step.trained]
    if len(steps) < _NUM_STEPS or not generated or not trained:
        return []
    ratio = fmean(trained) / max(fmean(generated), 1e-9)
    if ratio >= _MIN_LENGTH_RATIO:
        return []
    return [
        f"responses trained in the last {_NUM_STEPS} steps are {ratio:.0%} as long as those generated: long ones starve"
    ]
