"""What a job needs of a node group, as a pattern that repeats.

A *segment* is a stretch of a period in which the job uses the group: the training phase of one optimizer step, for
instance. Between segments the group is free for others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tailrace.cluster.checks import above_zero, finite


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandSegment:
    offset_s: float
    """Seconds from the start of the period."""
    duration_s: float
    slack_s: float = 0.0
    """Seconds by which the segment can be late without making the job slower."""
    mean_s: float | None = None
    """Its mean duration, if it varies and ``duration_s`` is what it seldom exceeds; None: the same."""

    def __post_init__(self) -> None:
        finite(0, offset_s=self.offset_s, slack_s=self.slack_s)
        above_zero(duration_s=self.duration_s)
        if self.mean_s is not None:
            above_zero(mean_s=self.mean_s)

    @property
    def end_s(self) -> float:
        return self.offset_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandTrace:
    period_s: float
    segments: tuple[DemandSegment, ...]
    """In order, without overlap, all within the period."""
    steps: int = 1
    """Optimizer steps in one period. Tail batching, for instance, repeats only every five steps."""
    busy_s: float = field(init=False, repr=False, compare=False)
    duty: float = field(init=False, repr=False, compare=False)
    """Share of the time that is planned for the job."""

    def __post_init__(self) -> None:
        if not 0 < self.period_s < math.inf or not 1 <= self.steps < math.inf or not self.segments:
            raise ValueError("a demand trace needs a period above 0, at least one step and at least one segment")
        ends = [0.0, *(segment.end_s for segment in self.segments)]
        for segment, end_before in zip(self.segments, ends, strict=False):
            if segment.offset_s < end_before:
                raise ValueError(f"segments must follow each other, got {self.segments}")
        if not ends[-1] <= self.period_s * (1 + 1e-9):
            raise ValueError(f"the last segment ends at {ends[-1]} s, after the period of {self.period_s} s")
        # Asked for again and again while places are compared.
        object.__setattr__(self, "busy_s", sum(segment.duration_s for segment in self.segments))
        object.__setattr__(self, "duty", self.busy_s / self.period_s)

    @property
    def mean_duty(self) -> float:
        """Share of the time in which the job uses the group."""
        used = (each.duration_s if each.mean_s is None else each.mean_s for each in self.segments)
        return sum(used) / self.period_s

    @property
    def step_s(self) -> float:
        """Mean seconds of an optimizer step, if the job has the group to itself."""
        return self.period_s / self.steps

    @classmethod
    def clipped(cls, *, period_s: float, segments: Sequence[DemandSegment], steps: int) -> DemandTrace:
        """A pattern of these segments, none of them longer than until the next one or the end of the period."""
        ends_s = [*(segment.offset_s for segment in segments[1:]), period_s]
        return cls(
            period_s=period_s,
            segments=tuple(_until(segment, end_s) for segment, end_s in zip(segments, ends_s, strict=True)),
            steps=steps,
        )

    def with_durations(self, durations_s: Sequence[float]) -> DemandTrace:
        """The same pauses, and segments of these lengths."""
        segments, end_s, end_before_s = [], 0.0, 0.0
        for segment, duration_s in zip(self.segments, durations_s, strict=True):
            offset_s = end_s + max(0.0, segment.offset_s - end_before_s)
            segments.append(replace(segment, offset_s=offset_s, duration_s=duration_s, mean_s=None))
            end_s, end_before_s = segments[-1].end_s, segment.end_s
        period_s = end_s + max(0.0, self.period_s - end_before_s)  # rounding may put the last end behind the period
        return DemandTrace(period_s=period_s, segments=tuple(segments), steps=self.steps)

    def repeated(self, times: int) -> DemandTrace:
        """The same pattern, with several of its periods counted as one."""
        if times == 1:
            return self
        segments, end_s = [], 0.0
        for number in range(times):
            for segment in self.segments:
                offset_s = max(
                    end_s, number * self.period_s + segment.offset_s
                )  # rounding may put it before the last end
                segments.append(replace(segment, offset_s=offset_s))
                end_s = segments[-1].end_s
        return DemandTrace(
            period_s=max(times * self.period_s, end_s), segments=tuple(segments), steps=times * self.steps
        )

    def with_period(self, period_s: float) -> DemandTrace | None:
        """The same segments in a longer or shorter period: only the pauses between them change, all by the same
        factor. None: the segments take longer than this period."""
        pauses_s = self.period_s - self.busy_s
        factor = 1.0 if pauses_s <= 0 else (period_s - self.busy_s) / pauses_s
        if not self.busy_s <= period_s or factor < 0:
            return None
        segments, end_s, end_before_s = [], 0.0, 0.0
        for segment in self.segments:
            offset_s = end_s + (segment.offset_s - end_before_s) * factor
            segments.append(replace(segment, offset_s=offset_s))
            end_s, end_before_s = segments[-1].end_s, segment.end_s
        return DemandTrace(period_s=max(period_s, end_s), segments=tuple(segments), steps=self.steps)


def _until(segment: DemandSegment, end_s: float) -> DemandSegment:
    """The segment, cut off at ``end_s``. Its end is not later, rounding included."""
    duration_s = min(segment.duration_s, end_s - segment.offset_s)
    while segment.offset_s + duration_s > end_s:
        duration_s = math.nextafter(duration_s, 0.0)
    return replace(segment, duration_s=duration_s)
