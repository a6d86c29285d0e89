"""How long the periods and phases of one job really are, from its newest ones.

A period lasts from the moment in which its first phase is asked for until that of the next period, less what the job
waited beyond its slack meanwhile: so long it would be without sharing. It does not count if a phase failed in it, or if
the job came to another place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from tailrace.cluster.demand.trace import DemandTrace

NUM_KEPT = 6
"""Newest periods that are remembered, and newest phases of each segment; more if so many must differ."""
_SMALL = 4
"""If all of them are longer or shorter, a difference counts that is so many times smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftLimits:
    """From when on a job's demand is not the planned one."""

    share: float
    """It differs by this share of what was planned, and by more than a slot: plans are not finer..."""
    num_periods: int
    """...in so many periods in a row."""
    slot_s: float

    @property
    def num_kept(self) -> int:
        return max(self.num_periods, NUM_KEPT)


@dataclass(slots=True, kw_only=True)
class _Period:
    begun_at: float
    """When its first phase was asked for."""
    place_since: float
    """Since when the job has the place in which the period began."""
    starts_s: list[float] = field(default_factory=list)
    """When each of its phases was asked for, in seconds from the first one, without the waits before."""
    waited_s: float = 0.0
    """Seconds that its phases waited beyond their slack."""
    seconds: float = 0.0
    """How long it took, when it is over."""

    def seconds_until(self, now: float) -> float:
        return now - self.begun_at - self.waited_s


@dataclass(slots=True, kw_only=True)
class MeasuredDemand:
    periods: list[_Period] = field(default_factory=list)
    """Complete ones."""
    durations_s: dict[int, list[float]] = field(default_factory=dict)
    """Seconds of the newest phases of each segment."""
    present: _Period | None = None

    # Questions

    def num_changed(self, plan: DemandTrace, limits: DriftLimits) -> int:
        """How many of the newest periods or phases, one after the other, show another demand than the planned one.
        0: it is as planned."""
        few, all_kept = limits.num_periods, limits.num_kept
        periods_s = [period.seconds for period in self.periods]
        for newest, share in ((few, limits.share), (all_kept, limits.share / _SMALL)):
            margin_s = max(share * plan.period_s, limits.slot_s)
            if _is_above(periods_s, plan.period_s + margin_s, newest):
                return newest
            if _is_below(periods_s, plan.period_s - margin_s, newest):
                return newest
        for number, segment in enumerate(plan.segments):
            seconds, margin_s = self.durations_s.get(number, []), max(limits.share * segment.duration_s, limits.slot_s)
            if _is_above(seconds, segment.duration_s + margin_s, few):
                return few
            # Planned durations have a reserve, so a few shorter phases say nothing.
            if _is_below(seconds, segment.duration_s - margin_s, all_kept):
                return all_kept
        return 0

    def is_period_other(self, plan: DemandTrace, newest: int) -> bool:
        """Whether this many of the newest periods are all longer, or all shorter, than planned: not only by chance."""
        periods_s = [period.seconds for period in self.periods[-newest:]]
        return bool(periods_s) and (min(periods_s) > plan.period_s or max(periods_s) < plan.period_s)

    def forecast_phases(self, plan: DemandTrace, newest: int) -> DemandTrace:
        """The plan with durations that nine of ten of this many of the newest phases do not exceed."""
        durations_s = self._durations_s(plan, newest)
        segments = [
            replace(segment, duration_s=seconds) for segment, seconds in zip(plan.segments, durations_s, strict=True)
        ]
        return DemandTrace.clipped(period_s=plan.period_s, segments=segments, steps=plan.steps)

    def forecast(self, plan: DemandTrace, newest: int) -> DemandTrace:
        """The plan with measured durations, and the medians of this many of the newest periods and of the starts of the
        phases in them."""
        durations_s, periods = self._durations_s(plan, newest), self.periods[-newest:]
        if not periods:
            return plan.with_durations(durations_s)
        period_s = median(period.seconds for period in periods)
        starts_s = [median(same) for same in zip(*(period.starts_s for period in periods), strict=True)]
        if not all(before < after for before, after in pairwise([*starts_s, period_s])):
            return plan  # the reports contradict each other
        first_s = _pause_before_first(plan, max(0.0, period_s - starts_s[-1] - durations_s[-1]))
        segments = [
            replace(segment, offset_s=first_s + start_s, duration_s=duration_s)
            for segment, start_s, duration_s in zip(plan.segments, starts_s, durations_s, strict=True)
        ]
        return DemandTrace.clipped(period_s=period_s, segments=segments, steps=plan.steps)

    def _durations_s(self, plan: DemandTrace, newest: int) -> list[float]:
        return [
            _nine_of_ten(self.durations_s.get(number, [])[-newest:]) or segment.duration_s
            for number, segment in enumerate(plan.segments)
        ]

    # Notices

    def note_phase(self, segment: int, *, asked_at: float, late_s: float, seconds: float, place_since: float) -> None:
        """Note a complete phase of this segment. ``place_since``: since when the job has its place."""
        if segment == 0:
            self._end_period(asked_at, place_since)
            self.present = _Period(begun_at=asked_at, place_since=place_since)
        if self.present is not None:
            self.present.starts_s.append(self.present.seconds_until(asked_at))
            self.present.waited_s += late_s
        if seconds > 0:
            self.durations_s.setdefault(segment, []).append(seconds)

    def give_up_period(self) -> None:
        """The present period does not count."""
        self.present = None

    def forget(self) -> None:
        """What was seen before does not count."""
        self.present = None
        self.keep(0)

    def keep(self, newest: int) -> None:
        """Forget all but this many of the newest periods, and phases of each segment."""
        del self.periods[: max(0, len(self.periods) - newest)]
        for seconds in self.durations_s.values():
            del seconds[: max(0, len(seconds) - newest)]

    def _end_period(self, now: float, place_since: float) -> None:
        ended = self.present
        if ended is None or ended.place_since != place_since:
            return
        ended.seconds = ended.seconds_until(now)
        if ended.seconds > 0:
            self.periods.append(ended)


def _is_above(seconds: Sequence[float], limit_s: float, newest: int) -> bool:
    return len(seconds) >= newest and min(seconds[-newest:]) > limit_s


def _is_below(seconds: Sequence[float], limit_s: float, newest: int) -> bool:
    return len(seconds) >= newest and max(seconds[-newest:]) < limit_s


def _nine_of_ten(seconds: Sequence[float]) -> float:
    """The least that nine of ten of them do not exceed, where one of them may be an accident; 0: there are none."""
    return sorted(seconds)[int(0.9 * (len(seconds) - 1))] if seconds else 0.0


def _pause_before_first(plan: DemandTrace, pause_s: float) -> float:
    """The part of the pause between the last phase of a period and the first one of the next that belongs to the
    next, as it is planned."""
    first_s = plan.segments[0].offset_s
    planned_s = plan.period_s - plan.segments[-1].end_s + first_s
    return pause_s * first_s / planned_s if planned_s > 0 else 0.0
