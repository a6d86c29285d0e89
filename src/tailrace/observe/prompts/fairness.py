"""Checks that long prompts get their turn. Returns one sentence per problem.

Schedules that prefer what finishes first may put off what takes long. There are three signs of it:

* A prompt waits in the long queue for more rounds than the schedule itself explains.
* Trained responses are much shorter than responses would be if none were stopped early
  (``metrics/natural_lengths.py``).
* Long responses begin again and again because of the version cap, and their tokens are wasted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import fmean

from tailrace.core.schedule import Leftovers, Schedule, VersionCap
from tailrace.observe.metrics.kaplan_meier import LengthEstimate
from tailrace.observe.metrics.natural_lengths import WINDOW_STEPS, natural_lengths
from tailrace.observe.prompts.fates import DEFERRED, Fates

_MIN_LENGTH_RATIO, _MAX_UNSEEN_SHARE, _MAX_RESTARTED_SHARE = 0.5, 0.1, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLengths:
    """Lengths that were trained on beside natural ones, over the newest steps."""

    num_steps: int
    trained: tuple[int, ...]
    """Sorted."""
    natural: LengthEstimate

    @property
    def ratio(self) -> float:
        """Mean length trained on, as a share of the natural mean."""
        return fmean(self.trained) / max(self.natural.mean, 1e-9)

    @property
    def natural_mean_words(self) -> str:
        bound = "at least " if self.natural.unseen_share > 0 else ""
        return f"{bound}{self.natural.mean:,.0f}"


def compare_lengths(fates: Fates) -> ComparedLengths | None:
    """Compare the lengths of the newest steps; None before the first step."""
    steps = fates.lengths[-WINDOW_STEPS:]
    trained = sorted(length for step in steps for length in step.trained)
    natural = natural_lengths([step.observed for step in steps])
    if natural is None or not trained:
        return None
    return ComparedLengths(num_steps=len(steps), trained=tuple(trained), natural=natural)


def alarms(fates: Fates, schedule: Schedule) -> list[str]:
    return [*_waiting_prompts(fates, schedule), *length_alarms(fates), *restart_alarms(fates, schedule)]


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


def length_alarms(fates: Fates) -> list[str]:
    """A sentence if the newest steps trained on responses much shorter than natural ones, or never on long ones."""
    found = compare_lengths(fates)
    if found is None or found.num_steps < WINDOW_STEPS:
        return []
    natural = found.natural
    if found.ratio >= _MIN_LENGTH_RATIO and natural.unseen_share <= _MAX_UNSEEN_SHARE:
        return []
    unseen = f", {natural.unseen_share:.0%} are longer than any that ended" if natural.unseen_share else ""
    return [
        f"long responses are missing from training: those trained in the last {found.num_steps} steps have a mean"
        f" length of {fmean(found.trained):,.0f} tokens, the natural mean is {found.natural_mean_words}{unseen}"
        f" (Kaplan-Meier estimate; {natural.num_censored:,} of {natural.num_ended + natural.num_censored:,} responses"
        " were stopped before they ended)"
    ]


def restart_alarms(fates: Fates, schedule: Schedule) -> list[str]:
    """A sentence if many tokens belong to responses that began again because of ``max_versions_per_sample``."""
    if schedule.max_versions_per_sample is None or schedule.version_cap is not VersionCap.RESTART:
        return []
    groups = [fate for fate in fates.groups.values() if fate.group.source == fates.train_source]
    restarted = [
        note.length
        for fate in groups
        for response, note in fate.responses.items()
        if note.is_dropped and response._replace(attempt=response.attempt + 1) in fate.responses
    ]
    share = sum(restarted) / max(1, sum(fate.num_tokens for fate in groups))
    if share <= _MAX_RESTARTED_SHARE:
        return []
    return [
        f"{share:.0%} of the tokens were generated for {len(restarted):,} responses that then began again because of"
        f" max_versions_per_sample = {schedule.max_versions_per_sample}"
    ]
