"""Whether the phases of one job still are what its demand trace says, and how long they really are."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.cluster.demand.trace import DemandSegment, DemandTrace

MAX_PAUSE = 64
NUM_REMEMBERED = 8
"""Phases of which the length is remembered."""


@dataclass(slots=True, kw_only=True)
class Drift:
    num_drifted: int = 0
    """Complete phases in a row that were later or longer than planned."""
    pause: int = 0
    """Phases until drift counts again. Planning a job again costs time, and often finds nothing better."""
    last_pause: int = 0
    ratios: list[float] = field(default_factory=list)
    """How many times as long as planned each of the newest phases was."""

    def note_phase(self, ratio: float, *, is_off: bool) -> None:
        """Note a complete phase. ``is_off``: it was later or longer than planned by more than is tolerated."""
        self.ratios = [*self.ratios, ratio][-NUM_REMEMBERED:]
        self.num_drifted = self.num_drifted + 1 if is_off and not self.pause else 0
        self.pause = max(0, self.pause - 1)

    def start_again(self) -> None:
        """The job has another trace: what was seen before does not count."""
        self.num_drifted, self.ratios = 0, []

    def pause_counting(self, least: int) -> None:
        """Count no drift for some phases, each time for twice as many."""
        self.last_pause = self.pause = min(MAX_PAUSE, max(least, 2 * self.last_pause))

    def forget_pauses(self) -> None:
        """The job has another place: the next pause is a short one."""
        self.last_pause = 0

    def observed(self, trace: DemandTrace | None) -> DemandTrace | None:
        """The trace with segments as many times as long as nine of ten of the newest phases were."""
        if trace is None or not self.ratios:
            return trace
        factor = sorted(self.ratios)[int(0.9 * (len(self.ratios) - 1))]
        return trace if factor <= 0 else _stretched(trace, factor)


def _stretched(trace: DemandTrace, factor: float) -> DemandTrace:
    """Segments as many times as long; the time between them stays."""
    at, segments, end_before = 0.0, [], 0.0
    for segment in trace.segments:
        at += max(0.0, segment.offset_s - end_before)
        duration_s = segment.duration_s * factor
        segments.append(DemandSegment(offset_s=at, duration_s=duration_s, slack_s=segment.slack_s))
        at, end_before = segments[-1].end_s, segment.end_s
    # Rounding may put the last end behind the period.
    period_s = at + max(0.0, trace.period_s - end_before)
    return DemandTrace(period_s=period_s, segments=tuple(segments), steps=trace.steps)
