"""What a run did in each optimizer step, and for how long: a pure fold over the journal.

A *phase* is a stretch of one kind of work. On the training devices, one after the other:

* ``train``: from the first command of a step until the step is complete (accumulation and optimizer step),
* ``publish``: the part of a push of weights that no other work hides,
* ``save``: writing a checkpoint.

On the rollout devices, beside the others if the schedule lets them overlap:

* ``rollout``: at least one instance generates responses for training,
* ``evaluate``: instances generate only responses of evaluations.

``publish`` and ``save`` belong to the step that they follow, the other kinds to the step that comes next.

Time counts from the first response on, when all processes have started. The pause of a resumed run does not count: run
time stands still while the processes are gone, and their new start is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.records import Work
from tailrace.observe.shared_fold.run_fold import RunFold

TRAIN, PUBLISH, SAVE, ROLLOUT, EVALUATE = "train", "publish", "save", "rollout", "evaluate"
ON_TRAINING_DEVICES = (TRAIN, PUBLISH, SAVE)
_KINDS = {Work.TRAIN: TRAIN, Work.SAVE: SAVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    kind: str
    start: float
    """Seconds since the first response was asked for, without pauses."""
    seconds: float
    step: int
    """Number of the optimizer step, from 1 on."""

    @property
    def end(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One optimizer step as its training devices see it. The parts of all steps add up to the time of the run."""

    step: int
    rollout_s: float
    """Seconds before its training in which the training devices have nothing to do."""
    train_s: float
    sync_s: float
    """Seconds of publishing and saving after it."""

    @property
    def seconds(self) -> float:
        return self.rollout_s + self.train_s + self.sync_s


class _Lane:
    """Devices that do one thing at a time."""

    def __init__(self, phases: list[Phase]) -> None:
        self.kind: str | None = None
        self._since = 0.0
        self._phases = phases

    def switch(self, kind: str | None, clock: float, steps_done: int) -> None:
        """From now on the devices do ``kind``; None: nothing."""
        if kind != self.kind:
            self.cut(clock, steps_done)
            self.kind = kind

    def cut(self, clock: float, steps_done: int) -> None:
        """End the current phase. What the devices do goes on as a new one."""
        if self.kind is not None and clock > self._since:
            is_after_step = self.kind in (PUBLISH, SAVE)
            step = max(steps_done, 1) if is_after_step else steps_done + 1
            self._phases.append(Phase(kind=self.kind, start=self._since, seconds=clock - self._since, step=step))
        self._since = clock


class PhaseTimes:
    """Feed it a journal from its first entry."""

    def __init__(self, run: RunFold | None = None) -> None:
        """``run``: a fold that several accounts share; whoever shares it calls ``hear`` and not ``feed``."""
        self._run = run or RunFold()
        self._clock = 0.0
        self._is_counting = False
        self._found: list[Phase] = []
        self._trainer, self._rollout = _Lane(self._found), _Lane(self._found)
        self.num_steps = 0
        """Optimizer steps that are complete."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> PhaseTimes:
        phases = cls()
        for entry in entries:
            phases.feed(entry)
        return phases

    @property
    def num_instances(self) -> int:
        """Rollout instances of the run's schedule; 0 before the run has begun."""
        return self._run.state.schedule.num_instances if self._run.state.schedule is not None else 0

    def feed(self, entry: Entry) -> None:
        for news in self._run.feed(entry):
            self.hear(news)

    def hear(self, news: News) -> None:
        match news.message:
            case TimeSinceLast(since=since, is_outage=is_outage):
                self._elapse(news.now - since, is_outage=is_outage)
                return
            case do.Submit() | do.Accumulate():
                self._is_counting = True
            case ev.StepTrained():
                for lane in (self._trainer, self._rollout):
                    lane.cut(self._clock, self.num_steps)
                self.num_steps += 1
        self._look()

    def all(self) -> tuple[Phase, ...]:
        """All phases that have ended, by their start."""
        return tuple(sorted(self._found, key=lambda phase: (phase.start, phase.end)))

    def steps(self) -> tuple[StepTime, ...]:
        """Every complete optimizer step, in order."""
        train, sync, train_end = self._sums(TRAIN), self._sums(PUBLISH, SAVE), 0.0
        ends = {phase.step: phase.end for phase in self._found if phase.kind == TRAIN}
        found = []
        for step in range(1, self.num_steps + 1):
            end = ends.get(step, train_end)
            rollout_s = end - train_end - train.get(step, 0.0) - sync.get(step - 1, 0.0)
            found.append(
                StepTime(
                    step=step, rollout_s=max(rollout_s, 0.0), train_s=train.get(step, 0.0), sync_s=sync.get(step, 0.0)
                )
            )
            train_end = end
        return tuple(found)

    def _sums(self, *kinds: str) -> dict[int, float]:
        sums: dict[int, float] = {}
        for phase in self._found:
            if phase.kind in kinds:
                sums[phase.step] = sums.get(phase.step, 0.0) + phase.seconds
        return sums

    def _elapse(self, seconds: float, *, is_outage: bool) -> None:
        if is_outage:
            self._is_counting = False
        elif self._is_counting:
            self._clock += seconds

    def _look(self) -> None:
        """What the devices do may have changed with the last message."""
        state = self._run.state
        kind = PUBLISH if state.publishing is not None else None
        self._switch(self._trainer, _KINDS[state.orders[0].work] if state.orders else kind)
        rollout = EVALUATE if self._run.is_evaluating else ROLLOUT
        self._switch(self._rollout, rollout if self._run.generating else None)

    def _switch(self, lane: _Lane, kind: str | None) -> None:
        lane.switch(kind, self._clock, self.num_steps)
