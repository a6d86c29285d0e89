"""A simulated job: it rolls out on its own devices, asks for phases on its node group, and reports their ends.

The job knows how long everything really takes (``steps``). The scheduler hears only the expected times (``cycle``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tailrace.cluster.events import Event, JobEnded, JobProfiled, PhaseAsked, PhaseEnded
from tailrace.cluster.job_spec import JobSpec, Parts
from tailrace.sim.cluster.step_times import (
    Overlap,
    PhaseShape,
    StateUse,
    StepTimes,
    demand_trace,
    phase_shapes,
)
from tailrace.sim.driver import Agenda

_LATE_SHARE = 0.05
"""A period that would begin later than planned by at most this share of it begins at once, not one period later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job will do. ``model`` is a name for reports."""

    spec: JobSpec
    model: str
    overlap: Overlap
    cycle: tuple[StepTimes, ...]
    """Expected times. They repeat."""
    steps: tuple[StepTimes, ...]
    """Actual times, one for each optimizer step."""
    use: StateUse = StateUse()
    submitted: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Phase:
    actual_s: tuple[float, ...]
    expected_s: tuple[float, ...]
    shape: PhaseShape
    rest: tuple[PhaseShape, ...]
    """Phases that follow without anything of the job in between but work on the host."""
    and_then: Callable[[], None]
    done: int = 0
    granted: int = 0
    lease: int = 0
    asked_at: float = 0.0
    factor: float = 1.0


class SimJob:
    """Owns the place of a job in its steps. The world calls the methods without underscore."""

    def __init__(self, plan: JobPlan, agenda: Agenda, post: Callable[[Event], None]) -> None:
        self.plan, self._agenda, self._post = plan, agenda, post
        self.id = plan.spec.id
        self.started: float | None = None
        self.ended: float | None = None
        self.reason = ""
        self.waited_s = 0.0
        """Seconds between asking for operations and the start of their lease."""
        self.steps_done = 0
        self._phase: _Phase | None = None
        self._is_rollout_done = self._is_trained = False
        self._rollout_due = 0.0
        """When the current rollout is expected to end."""
        self._period_at: float | None = None
        """A planned start of a period; later ones follow at whole periods."""
        self._is_profiled = plan.spec.trace is not None
        self._clean: list[StepTimes] = []
        self._waited_before = 0.0
        self._slow_factor: float | None = None

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    @property
    def is_computing(self) -> bool:
        return self._phase is not None and self._phase.granted > 0

    @property
    def parts(self) -> Parts:
        """Parts of its state that its phase needs on the devices."""
        shape = self._current().shape
        return self.plan.spec.device_parts if shape.parts is None else shape.parts

    def start(self, delay_s: float) -> None:
        """Begin the first period after ``delay_s``."""
        begin = self._agenda.now + delay_s
        self.started = begin
        if self.plan.overlap is Overlap.SERIAL:
            self._at(begin, self._begin_period)
        else:
            first = self.plan.steps[0]
            self._at(begin + first.sync_s + first.rollout_s, self._begin_period)

    def shift(self, delay_s: float) -> None:
        """Let a period begin ``delay_s`` from now, and the others at whole periods from it."""
        self._period_at = self._agenda.now + delay_s

    def slow_down(self, factor: float) -> None:
        """Let the next phase that starts take ``factor`` times as long."""
        self._slow_factor = factor

    def start_lease(self, num_operations: int, lease: int) -> float:
        """Start the next operations of the phase, and return how long they take."""
        phase = self._phase
        if phase is None or phase.granted or not 0 < num_operations <= len(phase.actual_s) - phase.done:
            raise ValueError(f"{self.id} has not asked for {num_operations} operations")
        now = self._agenda.now
        self.waited_s += now - phase.asked_at
        if self._slow_factor is not None and phase.done == 0:
            phase.factor, self._slow_factor = self._slow_factor, None
        phase.granted, phase.lease = num_operations, lease
        return phase.factor * sum(phase.actual_s[phase.done : phase.done + num_operations])

    def lease_ended(self, seconds: float) -> None:
        phase = self._current()
        phase.done, phase.granted = phase.done + phase.granted, 0
        if phase.done < len(phase.actual_s):
            self._post(PhaseEnded(job=self.id, seconds=seconds, lease=phase.lease, next_in_s=0.0))
            self._ask()
            return
        self._phase = None
        next_in_s = self._next_in_s(phase)
        self._post(PhaseEnded(job=self.id, seconds=seconds, lease=phase.lease, next_in_s=next_in_s))
        if phase.rest or phase.shape.host_after_s:
            self._at(self._agenda.now + phase.shape.host_after_s, lambda: self._run(phase.rest, phase.and_then))
        else:
            phase.and_then()

    def lose_lease(self) -> None:
        """The granted operations are lost with the node group. The job still asks for them."""
        phase = self._current()
        phase.granted, phase.factor, phase.asked_at = 0, 1.0, self._agenda.now

    def refuse(self, reason: str) -> None:
        self.ended, self.reason = self._agenda.now, reason

    def end(self, reason: str) -> None:
        self.ended, self.reason, self._phase = self._agenda.now, reason, None
        self._post(JobEnded(job=self.id, reason=reason))

    def _at(self, time: float, action: Callable[[], None]) -> None:
        self._agenda.at(time, lambda: None if self.is_over else action())

    def _current(self) -> _Phase:
        assert self._phase is not None, f"{self.id} has no phase"
        return self._phase

    def _begin_period(self) -> None:
        """A period begins now, or later if its place in the plan is later."""
        if self._period_at is not None and (delay := self._delay_s(self._period_at)) > 0:
            self._period_at = None
            self._at(self._agenda.now + delay, self._begin_period)
            return
        self._period_at = None
        self._waited_before = self.waited_s
        if self.plan.overlap is Overlap.SERIAL:
            self._roll_out(self.steps_done, self._train)
            return
        self._is_rollout_done, self._is_trained = self.steps_done + 1 == len(self.plan.steps), False
        self._rollout_due = self._agenda.now
        if not self._is_rollout_done:
            self._roll_out(self.steps_done + 1, self._rolled_out)
        self._run(self._shapes()[:-1], self._trained)

    def _delay_s(self, period_at: float) -> float:
        period_s = demand_trace(self.plan.cycle, self.plan.overlap, self.plan.use).period_s
        delay = (period_at - self._agenda.now) % period_s
        return 0.0 if period_s - delay < _LATE_SHARE * period_s else delay

    def _roll_out(self, step: int, and_then: Callable[[], None]) -> None:
        self._rollout_due = self._agenda.now + self.plan.cycle[step % len(self.plan.cycle)].rollout_s
        self._at(self._agenda.now + self.plan.steps[step].rollout_s, and_then)

    def _train(self) -> None:
        self._run(self._shapes(), self._end_step)

    def _trained(self) -> None:
        self._is_trained = True
        self._synchronize()

    def _rolled_out(self) -> None:
        self._is_rollout_done = True
        self._synchronize()

    def _synchronize(self) -> None:
        """The barrier at the end of an iteration."""
        if self._is_trained and self._is_rollout_done:
            self._run(self._shapes()[-1:], self._end_step)

    def _end_step(self) -> None:
        step = self.plan.steps[self.steps_done]
        self.steps_done += 1
        if not self._is_profiled:
            self._profile(step)
        if self.steps_done == len(self.plan.steps):
            self.end("finished")
        else:  # after the profile has been answered, so that a move can shift this period
            self._at(self._agenda.now, self._begin_period)

    def _profile(self, step: StepTimes) -> None:
        """Report the demand after a whole cycle without waiting."""
        self._clean = [*self._clean, step] if self.waited_s == self._waited_before else []
        if len(self._clean) == len(self.plan.cycle):
            self._is_profiled = True
            self._post(JobProfiled(job=self.id, trace=demand_trace(self._clean, self.plan.overlap, self.plan.use)))

    def _expected(self) -> StepTimes:
        return self.plan.cycle[self.steps_done % len(self.plan.cycle)]

    def _shapes(self) -> tuple[PhaseShape, ...]:
        return phase_shapes(len(self.plan.steps[self.steps_done].operations_s), self.plan.overlap, self.plan.use)

    def _run(self, shapes: Sequence[PhaseShape], and_then: Callable[[], None]) -> None:
        """Ask for these phases, one after the other."""
        if not shapes:
            and_then()
            return
        shape, *rest = shapes
        self._phase = _Phase(
            actual_s=shape.of(self.plan.steps[self.steps_done].operations_s),
            expected_s=shape.of(self._expected().operations_s),
            shape=shape,
            rest=tuple(rest),
            and_then=and_then,
        )
        self._ask()

    def _ask(self) -> None:
        phase, now = self._current(), self._agenda.now
        phase.asked_at = now
        left = phase.expected_s[phase.done :]
        is_waiting_for_rollout = self.plan.overlap is Overlap.ONE_STEP and not self._is_rollout_done
        busy_s = sum(left) + sum(self._later_s(phase))
        slack = max(0.0, self._rollout_due - now - busy_s) if is_waiting_for_rollout else 0.0
        self._post(PhaseAsked(job=self.id, operations_s=left, slack_s=slack, parts=phase.shape.parts))

    def _later_s(self, phase: _Phase) -> Iterator[float]:
        """Yield the expected seconds of what follows the phase until the job waits for its rollout."""
        yield phase.shape.host_after_s
        for shape in phase.rest:
            yield from shape.of(self._expected().operations_s)
            yield shape.host_after_s

    def _next_in_s(self, phase: _Phase) -> float | None:
        """Return when the job expects to ask again after this phase."""
        if phase.rest:
            return phase.shape.host_after_s
        is_step_over = phase.and_then == self._end_step
        if is_step_over and self.steps_done + 1 == len(self.plan.steps):
            return None
        if self.plan.overlap is Overlap.SERIAL:
            return self.plan.cycle[(self.steps_done + 1) % len(self.plan.cycle)].rollout_s
        return 0.0 if is_step_over else max(phase.shape.host_after_s, self._rollout_due - self._agenda.now)
