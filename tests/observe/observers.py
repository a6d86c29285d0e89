"""Everything that folds over a journal, fed the same entries, and a count of its own to hold them to.

``Told`` is what the messages themselves say: lengths as reported, steps as asked for, groups as left out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.schedule import Schedule
from tailrace.observe.account import Account
from tailrace.observe.costs.prediction import Prediction
from tailrace.observe.display.display import PlainDisplay
from tailrace.observe.display.live import LiveDisplay
from tailrace.observe.display.rollout_display import RolloutDisplay
from tailrace.observe.display.rollout_tally import RolloutTally
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.schedules.schedule_account import ScheduleAccount
from tailrace.sim.observations import Observations


@dataclass(slots=True, kw_only=True)
class Told:
    lengths: dict[ResponseId, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    """Lengths of responses that ended by themselves."""
    scores: dict[ResponseId, float] = field(default_factory=dict)
    num_failed: int = 0
    """Rewards that failed; those that were called off did not."""
    steps: list[do.Accumulate] = field(default_factory=list)
    """Those that were trained."""
    trained: list[int] = field(default_factory=list)
    """Tokens of each."""
    totals: list[int] = field(default_factory=list)
    """Tokens generated up to each."""
    left_out: list[tuple[GroupId, ...]] = field(default_factory=lambda: [()])
    """Filtered or dropped before each step; then those after the last."""
    _asked: do.Accumulate | None = None
    _start: int = 0
    """Number of the last start of the trainer."""

    def feed(self, entry: Entry) -> None:
        match entry.event:
            case ev.RolloutReported(progressed=progressed, finished=finished):
                self.lengths |= {part.response: part.length for part in (*progressed, *finished)}
                self.ended += [end.length for end in finished]
            case ev.ResponsesAborted(aborted=aborted):
                self.lengths |= {p.response: max(p.length, self.lengths.get(p.response, 0)) for p in aborted}
            case ev.ResponsesScored(scores=scores):
                self.scores |= {s.response: s.score if s.outcome is Outcome.OK else 0.0 for s in scores}
                self.num_failed += sum(s.outcome not in (Outcome.OK, Outcome.ABORTED) for s in scores)
            case ev.StepTrained(incarnation=start) if self._asked is not None and start in (None, self._start):
                # Any other is refused: it is repeated, or comes from a trainer that was replaced.
                self.steps.append(self._asked)
                self.trained.append(sum(self.lengths[r] for r in self._asked.responses))
                self.totals.append(sum(self.lengths.values()))
                self.left_out.append(())
                self._asked = None
            case ev.TrainerLost(incarnation=start) if start in (None, self._start):
                self._asked = None
            case ev.RunResumed():
                self._asked = None
        for command in entry.commands:
            if isinstance(command, do.Accumulate):
                self._asked = command
            elif isinstance(command, do.StartTrainer):
                self._start = command.incarnation
            elif isinstance(command, do.ReportDropped):
                self.left_out[-1] += (*command.filtered, *command.dropped)


class Observers:
    """As they are made for a run."""

    def __init__(self, schedule: Schedule) -> None:
        self.told = Told()
        self.account, self.costs, self.tally = Account(), ScheduleAccount(), RolloutTally()
        self.prediction = Prediction(costs=NOTHING_KNOWN, prompt_length=3, max_running=4)
        self.observations = Observations(prompt_length=3, max_running=4)
        self.resumed, self.rows = Metrics(), list[Row]()
        """Metrics that every resume of the run takes from a snapshot, and their rows."""
        self.lines: list[str] = []
        self.plain = PlainDisplay(schedule.max_steps, self.lines.append)
        self.live = LiveDisplay(schedule.max_steps, Console(file=io.StringIO(), width=100))
        self.rollout = RolloutDisplay(schedule, self.lines.append)

    def follow(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._feed(entry)
        self.live.close()

    def _feed(self, entry: Entry) -> None:
        for fold in (self.told, self.account, self.costs, self.prediction, self.observations, self.tally):
            fold.feed(entry)
        for display in (self.plain, self.live, self.rollout):
            display.entry(entry)
        if isinstance(entry.event, ev.RunResumed):
            self.resumed = Metrics.restore(json.loads(json.dumps(self.resumed.snapshot())))
        for row in self.resumed.feed(entry):
            self.rows.append(row)
            self.plain.row(row)
            self.live.row(row)
