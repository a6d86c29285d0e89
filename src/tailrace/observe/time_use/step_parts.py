"""How the seconds of each optimizer step were spent: a pure fold over the journal.

Each second belongs to one part, the first in the order of ``PARTS`` that applies. So

    all parts of a step, added up  ==  timing_s/step + timing_s/eval

holds for every step. What overlaps has a part of its own: seconds in which the trainer works while instances generate
are ``BOTH``, and add up to ``timing_s/update_hidden``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.records import Task, Work
from tailrace.observe.shared_fold.run_fold import RunFold

EVALUATE, BOTH, GENERATE, TRAIN = "evaluate", "generate and train", "generate", "train"
SAVE, REWARDS, WEIGHTS, START, OTHER = "save", "wait for rewards", "move weights", "start workers", "other"
PARTS = (EVALUATE, BOTH, GENERATE, TRAIN, SAVE, REWARDS, WEIGHTS, START, OTHER)
"""Time in which the processes of a resumed run were gone is ``START``, whatever went on before."""


@dataclass(slots=True)
class StepParts:
    """Feed it a journal from its first entry."""

    run: RunFold
    """A fold that several accounts share; whoever shares it calls ``hear``."""
    steps: list[dict[str, float]] = field(default_factory=list)
    """Seconds of each part of every step that is complete, without those that are 0."""
    current: dict[str, float] = field(default_factory=dict)
    """The same for the step in progress."""
    has_begun: bool = False
    """Whether a response was sent to an instance since the step before."""

    def hear(self, news: News) -> None:
        match news.message:
            case TimeSinceLast(since=since, is_outage=is_outage):
                self._add(START if is_outage else self._part(), news.now - since)
            case do.Submit():
                self.has_begun = True
            case ev.InstanceStarted() if not self.has_begun:
                # The start of processes is not part of a step.
                self.current = {part: seconds for part, seconds in self.current.items() if part == EVALUATE}
            case ev.StepTrained():
                self.steps.append(self.current)
                self.current, self.has_begun = {}, False

    def _add(self, part: str, seconds: float) -> None:
        if seconds:
            self.current[part] = self.current.get(part, 0.0) + seconds

    def _part(self) -> str:
        """What goes on as of the last message."""
        run, state = self.run, self.run.state
        if run.is_evaluating:
            return EVALUATE
        if run.generating:
            return BOTH if run.is_training_beside_rollout else GENERATE
        if state.orders:
            return TRAIN if state.orders[0].work is Work.TRAIN else SAVE
        if run.scores.is_alone and run.scores.awaited_of(run.train_source):
            return REWARDS
        tasks = [state.instances[instance].task for instance in run.occupied]
        if state.publishing is not None or Task.PULL in tasks:
            return WEIGHTS
        return START if state.is_trainer_starting or Task.START in tasks else OTHER
