"""Whether the phases of one job still are what its demand trace says."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.cluster.demand.trace import DemandTrace
from tailrace.cluster.rearranging.measured import DriftLimits, MeasuredDemand

MAX_PAUSE = 64


@dataclass(slots=True, kw_only=True)
class Drift:
    num_drifted: int = 0
    """Complete periods in a row in which a phase was elsewhere or later than planned."""
    is_period_off: bool = False
    """Whether that happened in the present period."""
    num_changed: int = 0
    """Newest periods that show another demand than the planned one; 0: it is as planned."""
    pause: int = 0
    """Periods until places count again. Planning a job again costs time, and often finds nothing better."""
    last_pause: int = 0
    measured: MeasuredDemand = field(default_factory=MeasuredDemand)

    # Questions

    def has_drifted(self, limits: DriftLimits) -> bool:
        return self.num_changed > 0 or self.num_drifted >= limits.num_periods

    def forecast(self, plan: DemandTrace, limits: DriftLimits) -> DemandTrace:
        """What is expected of the job from now on. If only places drifted, its period may be as planned: phases also
        come elsewhere because others were in the way, or because periods vary."""
        if self.num_changed or self.measured.is_period_other(plan, limits.num_kept):
            return self.measured.forecast(plan, self.num_changed or limits.num_kept)
        return self.measured.forecast_phases(plan, limits.num_kept)

    # Notices

    def note_place(self, *, is_off: bool, is_last: bool) -> None:
        """Note where a complete phase was. ``is_off``: elsewhere or later than planned by more than is tolerated.
        ``is_last``: it was the last one of its period."""
        self.is_period_off |= is_off
        if is_last:
            self.num_drifted = self.num_drifted + 1 if self.is_period_off and not self.pause else 0
            self.pause, self.is_period_off = max(0, self.pause - 1), False

    def note_demand(self, plan: DemandTrace, limits: DriftLimits) -> None:
        """Compare what was measured with the plan."""
        self.num_changed = self.measured.num_changed(plan, limits)
        self.measured.keep(limits.num_kept)

    def start_again(self) -> None:
        """The job has another trace: what was seen before does not count."""
        self.num_drifted = self.num_changed = 0
        self.measured.forget()

    def learned(self, *, is_other: bool, limits: DriftLimits) -> None:
        """The forecast is the plan now. Places are not counted for some periods: each time for twice as many, unless
        the demand was another one (``is_other``)."""
        if self.num_changed:
            self.measured.keep(self.num_changed)
        if is_other:
            self.last_pause = 0
        self.num_drifted = self.num_changed = 0
        self.last_pause = self.pause = min(MAX_PAUSE, max(limits.num_periods, 2 * self.last_pause))

    def forget_pauses(self) -> None:
        """The job has another place: the next pause is a short one."""
        self.last_pause = 0
