"""What the trainer was asked to do and has not done. A step is one piece or several, and a finish; while it waits for
the next piece it is not work."""

from __future__ import annotations

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.observe.shared_fold.records import RunState, StepRecord, TrainerOrder, Work


class TrainerWork:
    """Keeps the part of the state that speaks of the trainer."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    @property
    def is_training(self) -> bool:
        """Whether the trainer works on an optimizer step."""
        return bool(self._state.orders) and self._state.orders[0].work is Work.TRAIN

    def accumulate(self, command: do.Accumulate) -> None:
        step = self._state.step
        if step is None or not command.piece:
            step = self._state.step = StepRecord(version=command.version, responses=())
        step.responses += command.responses
        step.num_asked += 1
        self._ask(TrainerOrder(Work.TRAIN, command.version))

    def finish(self, version: Version) -> None:
        if self._state.step is not None:
            self._state.step.is_finishing = True
            self._ask(TrainerOrder(Work.TRAIN, version))

    def accumulated(self, event: ev.GradientsAccumulated) -> bool:
        step = self._state.step
        if step is None or event.version != step.version or not event.piece == step.num_done < step.num_asked:
            return False
        step.num_done += 1
        if step.num_done == step.num_asked and not step.is_finishing:
            self._done(TrainerOrder(Work.TRAIN, step.version))
        return True

    def drop_step(self) -> None:
        if self._state.step is not None:
            self._done(TrainerOrder(Work.TRAIN, self._state.step.version))
            self._state.step = None

    def end_step(self, event: ev.StepTrained) -> StepRecord:
        """Take the end of a step into account and return it."""
        step = self._state.step
        assert step is not None, f"version {event.version} was trained, but no step was asked for"
        self._state.version, self._state.step = event.version, None
        self._done(TrainerOrder(Work.TRAIN, step.version))
        return step

    def save(self, version: Version) -> None:
        self._ask(TrainerOrder(Work.SAVE, version))

    def saved(self, version: Version) -> bool:
        """Note that a checkpoint was written, skipped or could not be written. Return whether it was asked for."""
        return self._done(TrainerOrder(Work.SAVE, version))

    def publish(self, version: Version) -> None:
        self._state.publishing = version

    def published(self, version: Version) -> bool:
        """Note that a version was published. Return whether it was asked for."""
        if version != self._state.publishing:
            return False
        self._state.publishing = None
        return True

    def stop(self) -> None:
        """Note that nothing of what was asked will be done."""
        self._state.orders.clear()
        self._state.publishing = None

    def _ask(self, order: TrainerOrder) -> None:
        if order not in self._state.orders:
            self._state.orders.append(order)

    def _done(self, order: TrainerOrder) -> bool:
        """Whether the order was outstanding."""
        if order not in self._state.orders:
            return False
        self._state.orders.remove(order)
        return True
