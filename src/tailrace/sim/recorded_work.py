"""The work that recorded runs had to do: their prompts in order, and the lengths of their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.core.ids import ResponseId
from tailrace.core.journal import Entry
from tailrace.sim.lengths import RecordedLengths
from tailrace.sim.observations import Observations


@dataclass(frozen=True, slots=True)
class RecordedWork:
    order: tuple[tuple[int, int], ...]
    """(epoch, prompt index) of the training prompts of the first run."""
    ended: tuple[Mapping[ResponseId, tuple[int, bool]], ...]
    """For each run, the length of each response that ended, and whether its budget ended it."""

    @classmethod
    def of(cls, journals: Sequence[Sequence[Entry]]) -> RecordedWork:
        runs = [Observations(prompt_length=0) for _ in journals]
        for run, entries in zip(runs, journals, strict=True):
            for entry in entries:
                run.feed(entry)
        return cls(order=tuple(runs[0].offered), ended=tuple(run.lengths for run in runs))

    def lengths(self, seed: int) -> RecordedLengths:
        """Return the lengths for one simulation. ``seed``: of the lengths that no run has."""
        return RecordedLengths(self.ended, seed=seed)
