"""Everything that folds over a journal, fed the same entries, and a count of its own to hold them to.

``Told`` is what the messages themselves say: lengths as reported, steps as asked for, groups as left out.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console

from core.histories import in_one
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import NOTHING_KNOWN
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
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
    num_parts: int = 1
    """Parts that a score has."""
    parts: dict[ResponseId, dict[Part, ev.Scored]] = field(default_factory=dict)
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

    def _hear_part(self, scored: ev.Scored, part: Part) -> None:
        """The score is the sum of its parts, unless one failed or none applies."""
        parts = self.parts.setdefault(scored.response, {})
        parts[part] = scored
        if len(parts) < self.num_parts:
            return
        outcomes = [parts[each].outcome for each in Part if each in parts]
        bad = [each for each in outcomes if each not in (Outcome.OK, Outcome.ABSTAINED)]
        has_failed = bool(bad) or Outcome.OK not in outcomes
        self.num_failed += has_failed and bad[:1] != [Outcome.ABORTED]
        good = [each.score for each in parts.values() if each.outcome is Outcome.OK]
        self.scores[scored.response] = 0.0 if has_failed else sum(good)

    def feed(self, entry: Entry) -> None:
        match entry.event:
            case ev.RolloutReported(progressed=progressed, finished=finished):
                self.lengths |= {part.response: part.length for part in (*progressed, *finished)}
                self.ended += [end.length for end in finished]
            case ev.ResponsesAborted(aborted=aborted):
                self.lengths |= {p.response: max(p.length, self.lengths.get(p.response, 0)) for p in aborted}
            case ev.ResponsesScored(scores=scores) as event:
                for scored in scores:
                    self._hear_part(scored, event.part)
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
                is_more = command.piece > 0 and self._asked is not None
                self._asked = in_one(self._asked, command) if is_more else command
            elif isinstance(command, do.DropStep):
                self._asked = None
            elif isinstance(command, do.StartTrainer):
                self._start = command.incarnation
            elif isinstance(command, do.ReportDropped):
                self.left_out[-1] += (*command.filtered, *command.dropped)


@dataclass(slots=True, kw_only=True)
class ToldOfParts:
    """Seconds in which training waited for parts of scores, and what came back of each, in one step."""

    exposed: Counter[Part | None] = field(default_factory=Counter)
    """Seconds by part in which nothing else went on; None: of any part."""
    hidden: Counter[Part | None] = field(default_factory=Counter)
    run: Counter[Part] = field(default_factory=Counter)
    failed: Counter[Part] = field(default_factory=Counter)
    cut: int = 0
    limits: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class PartOracle:
    """Counts from the messages alone, by sets of what is outstanding."""

    source: str
    steps: list[ToldOfParts] = field(default_factory=list)
    current: ToldOfParts = field(default_factory=ToldOfParts)
    awaited: set[tuple[Part, ResponseId]] = field(default_factory=set)
    running: dict[ResponseId, int] = field(default_factory=dict)
    trainer: set[str] = field(default_factory=set)
    """What the trainer was asked to do: ``train`` while a piece of a step is not added, and from its finish on."""
    num_pieces: int = 0
    """Pieces that were asked for and not added."""
    finishes: bool = False
    starts: dict[int | str, int] = field(default_factory=dict)
    submitted: bool = False
    stopping: bool = False
    now: float = 0.0

    def feed(self, entry: Entry) -> None:
        if not isinstance(entry.event, ev.RunResumed):
            self._elapse(entry.now - self.now)
        self.now = entry.now
        sender = "trainer" if isinstance(entry.event, ev.TrainerEvent) else getattr(entry.event, "instance", None)
        start = getattr(entry.event, "incarnation", None)
        if start is None or sender is None or self.starts.get(sender, 0) == start:
            self._event(entry.event)
        for command in entry.commands:
            self._command(command)

    def _elapse(self, seconds: float) -> None:
        sources = {response.group.source for response in self.running}
        if sources and self.source not in sources:
            return
        parts: set[Part | None] = {part for part, response in self.awaited if response.group.source == self.source}
        counter = self.current.hidden if sources or self.trainer else self.current.exposed
        for part in parts | {None} if parts else ():
            counter[part] += seconds  # type: ignore[assignment]

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.RunResumed():
                self.awaited, self.running, self.stopping = set(), {}, False
                self._forget_trainer()
            case ev.StopRequested(saves=True):
                self.stopping = True
            case (
                ev.RolloutReported(instance=instance, finished=ended)
                | ev.ResponsesAborted(instance=instance, aborted=ended)
            ):
                for end in ended:
                    if self.running.get(end.response) == instance:
                        del self.running[end.response]
            case ev.InstanceLost(instance=instance) | ev.InstanceStopped(instance=instance):
                self.running = {r: i for r, i in self.running.items() if i != instance}
            case ev.InstanceStarted() if not self.submitted:
                self.current.exposed, self.current.hidden = Counter(), Counter()
            case ev.ResponsesScored(scores=scores, part=part) if not self.stopping:
                for scored in scores:
                    if (part, scored.response) in self.awaited:
                        self.awaited.remove((part, scored.response))
                        self._scored(part, scored)
            case ev.GradientsAccumulated() if self.num_pieces:
                self.num_pieces -= 1
                if not self.num_pieces and not self.finishes:
                    self.trainer.remove("train")
            case ev.StepTrained() if self.finishes:
                self.trainer.remove("train")
                self.num_pieces, self.finishes = 0, False
                self.steps.append(self.current)
                self.current, self.submitted = ToldOfParts(), False
            case ev.CheckpointSaved() | ev.CheckpointFailed() | ev.CheckpointSkipped():
                self.trainer.discard("save")
            case ev.TrainerReached(version=version) if version == len(self.steps):
                self.trainer.discard("start")
            case ev.TrainerLost() | ev.TrainingFailed():
                self._forget_trainer()

    def _forget_trainer(self) -> None:
        self.trainer -= {"train", "save"}
        self.num_pieces, self.finishes = 0, False

    def _scored(self, part: Part, scored: ev.Scored) -> None:
        if scored.response.group.source == self.source:
            self.current.run[part] += scored.seconds  # type: ignore[assignment]
            self.current.failed[part] += scored.outcome not in (Outcome.OK, Outcome.ABSTAINED, Outcome.ABORTED)
            self.current.cut += len(scored.cut_cases) * (part is Part.TESTS)

    def _command(self, command: do.Command) -> None:
        match command:
            case do.Submit(instance=instance, dispatches=dispatches):
                self.running |= {dispatch.response: instance for dispatch in dispatches}
                self.submitted = True
            case do.Score(responses=responses, part=part, limits=limits):
                self.awaited |= {(part, response) for response in responses}
                asked = [limit for r, limit in zip(responses, limits, strict=False) if r.group.source == self.source]
                self.current.limits += [max([others, *(s for _, s in cases)]) for others, cases in asked]
            case do.LimitCases(responses=responses, limits=limits):
                mine = [response for response in responses if response.group.source == self.source]
                self.current.limits += [max([limits.others_s, *(s for _, s in limits.cases)])] * len(mine)
            case do.Accumulate():
                self.trainer.add("train")
                self.num_pieces += 1
            case do.FinishStep():
                self.trainer.add("train")
                self.finishes = True
            case do.DropStep():
                self.trainer.discard("train")
                self.num_pieces = 0
            case do.SaveCheckpoint():
                self.trainer.add("save")
            case do.StartTrainer(incarnation=number):
                self.trainer.add("start")
                self.starts["trainer"] = number
            case do.StartInstance(instance=instance, incarnation=number):
                self.starts[instance] = number


class Observers:
    """As they are made for a run."""

    def __init__(self, schedule: Schedule) -> None:
        self.told = Told(num_parts=len(schedule.score_parts))
        self.parts = PartOracle(source=schedule.train_source)
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
        for fold in (self.told, self.parts, self.account, self.costs, self.prediction, self.observations, self.tally):
            fold.feed(entry)
        for display in (self.plain, self.live, self.rollout):
            display.entry(entry)
        if isinstance(entry.event, ev.RunResumed):
            self.resumed = Metrics.restore(json.loads(json.dumps(self.resumed.snapshot())))
        for row in self.resumed.feed(entry):
            self.rows.append(row)
            self.plain.row(row)
            self.live.row(row)
