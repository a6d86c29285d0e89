"""The steps that a new training process must repeat: those that were completed after its checkpoint.

The journal contains every step twice: when it is requested and when it is done. A step that was requested and is not
done does not count, because the core requests it again. Reports may be repeated or come from a trainer that is gone:
only the end of the step that was requested last counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.journal import Entry

_RATE = "/lr"
"""End of the names of metrics that are learning rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenStep:
    """A step that was taken."""

    batches: tuple[do.Accumulate, ...]
    """Its ``Accumulate`` commands, in order. Its ``FinishStep`` follows them."""
    rates: tuple[tuple[str, float], ...] = ()
    """Learning rates that it was taken with, by learner (``actor``, ``critic``). Settings may be others by now."""


class TakenSteps:
    """Collects completed steps from a journal. Steps that a later checkpoint covers are removed."""

    def __init__(self, begun: tuple[do.Accumulate, ...] = ()) -> None:
        """``begun``: pieces that were requested together with the checkpoint, so that later entries do not contain
        them."""
        self._asked = begun
        self._done: dict[Version, TakenStep] = {}
        self._incarnation: int | None = None
        """Number of the last start of the trainer; None: the entries did not contain it."""

    def feed(self, entry: Entry) -> None:
        if isinstance(event := entry.event, ev.StepTrained) and self._is_asked(event):
            rates = tuple((name.removesuffix(_RATE), value) for name, value in event.metrics if name.endswith(_RATE))
            self._done[self._asked[0].version] = TakenStep(batches=self._asked, rates=rates)
            self._asked = ()
        for command in entry.commands:
            match command:
                case do.StartTrainer(incarnation=incarnation):
                    self._incarnation, self._asked = incarnation, ()  # the trainer that was asked is gone
                case do.DropStep():
                    self._asked = ()
                case do.Accumulate():
                    self._asked += (command,)

    def _is_asked(self, event: ev.StepTrained) -> bool:
        is_gone = None not in (event.incarnation, self._incarnation) and event.incarnation != self._incarnation
        return bool(self._asked) and self._asked[0].version == event.version - 1 and not is_gone

    def cover(self, version: Version) -> None:
        """Remove the steps that a checkpoint of ``version`` on disk covers. The journal is no proof of a checkpoint: a
        user may have moved it away."""
        self._done = {number: step for number, step in self._done.items() if number >= version}

    def since(self, version: Version) -> tuple[TakenStep, ...]:
        """Return the steps that lead from ``version`` to the version of the run, in order."""
        return tuple(step for number, step in sorted(self._done.items()) if number >= version)
