"""What every worker of a run did, and when it had nothing to do: a pure fold over the journal.

A *lane* is one of them: each rollout instance, each part of the scores, the trainer. Its spans never overlap, and

    seconds in spans  +  idle seconds  ==  length of the lane's window

holds for every lane, finished run or not. What is still open when the journal ends counts up to its last entry.

* An instance is `starting` until it has weights, `generating` while it holds at least one unfinished response,
  `loading weights` during a pull, `ending` from the command to end it until it has ended. From when it has left its
  devices to training in mid-round until its next pull it is `lent to training`.
* A part of the scores is `scoring` while it is asked for and not back for at least one response. If scores have only
  the part of reward functions, its lane is called `rewards`.
* The trainer is `starting` until it has loaded a version, and `catching up` while it takes steps again that a crash
  cost it. Then it does one thing after the other, in the order asked: `training`, `saving`. `publishing` goes on beside
  them and is shown only while the trainer does nothing else: it is the part of a push that no other work hides.
* The lane of an instance ends when it leaves the fleet. If it comes back, it was `down` meanwhile.
* Between the last entry before a crash and the entry that resumes the run every lane is `down`: that is not idle.
  Run time stands still during the outage itself, so this is what the resumed run needs to get ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Part
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.records import Work
from tailrace.observe.shared_fold.run_fold import RunFold

STARTING, GENERATING, LOADING, ENDING = "starting", "generating", "loading weights", "ending"
LENT = "lent to training"
SCORING = "scoring"
TRAINING, SAVING, PUBLISHING, CATCHING_UP = "training", "saving", "publishing", "catching up"
DOWN, IDLE = "down", "idle"

REWARDS, TRAINER = "rewards", "trainer"
PART_LANES = {Part.FUNCTION: "reward functions", Part.TESTS: "test cases", Part.JUDGE: "judge"}
"""Names of the lanes of the parts, where scores have other parts than reward functions."""
SCORE_LANES = (REWARDS, *PART_LANES.values())
_WORDS = {Work.TRAIN: TRAINING, Work.SAVE: SAVING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    kind: str
    start: float
    end: float
    version: int | None = None
    """Version of the weights with which an instance generates."""

    @property
    def words(self) -> str:
        return self.kind if self.version is None else f"{self.kind}, version {self.version}"

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    start: float
    end: float
    spans: tuple[Span, ...]
    """In order, without overlap, within the window."""

    @property
    def idle_s(self) -> float:
        return self.end - self.start - sum(span.seconds for span in self.spans)

    @property
    def idle_ratio(self) -> float:
        """Share of the time the lane was up."""
        up_s = self.end - self.start - self.seconds().get(DOWN, 0.0)
        return self.idle_s / up_s if up_s > 0 else 0.0

    def seconds(self) -> dict[str, float]:
        """Seconds by kind, without idle time."""
        totals: dict[str, float] = {}
        for span in self.spans:
            totals[span.kind] = totals.get(span.kind, 0.0) + span.seconds
        return totals

    def with_idle(self) -> tuple[Span, ...]:
        """The whole window: the spans, and an idle span in every gap."""
        filled, position = [], self.start
        for span in self.spans:
            if span.start > position:
                filled.append(Span(kind=IDLE, start=position, end=span.start))
            filled.append(span)
            position = span.end
        if self.end > position:
            filled.append(Span(kind=IDLE, start=position, end=self.end))
        return tuple(filled)


@dataclass(slots=True, kw_only=True)
class _Track:
    """A lane while it is being written."""

    start: float
    spans: list[Span] = field(default_factory=list)
    kind: str | None = None
    since: float = 0.0
    version: int | None = None
    """Version of the weights of an instance."""
    left_at: float | None = None
    """When the instance left the fleet; None: it is there."""

    def leave(self, now: float) -> None:
        """The instance is no longer there: its lane ends."""
        if self.left_at is None:
            self.switch(None, now)
            self.left_at = now

    def come_back(self, now: float) -> None:
        if self.left_at is not None:
            self.spans.append(Span(kind=DOWN, start=self.left_at, end=now))
            self.left_at = None

    def switch(self, kind: str | None, now: float) -> None:
        """From now on the lane does ``kind``; None is idle."""
        if kind == self.kind:
            return
        self.spans += self.open_span(now)
        self.kind, self.since = kind, now

    def open_span(self, now: float) -> list[Span]:
        """What the lane has been doing up to now, if anything."""
        if self.kind is None or now <= self.since:
            return []
        version = self.version if self.kind == GENERATING else None
        return [Span(kind=self.kind, start=self.since, end=now, version=version)]


class Timeline:
    """Feed it a journal from its first entry; ask for ``lanes`` whenever you like."""

    def __init__(self, run: RunFold | None = None) -> None:
        """``run``: a fold that several accounts share; whoever shares it calls ``hear`` and not ``feed``."""
        self._run = run or RunFold()
        self._tracks: dict[str, _Track] = {}
        self._now = 0.0
        self._is_round_open = False

    def feed(self, entry: Entry) -> None:
        for news in self._run.feed(entry):
            self.hear(news)

    def hear(self, news: News) -> None:
        self._now = news.now
        message = news.message
        if isinstance(message, TimeSinceLast):
            if message.is_outage:
                self._resume(message.since, news.now)
        elif isinstance(message, ev.Event):
            self._event(message)
        else:
            self._command(message)

    def lanes(self) -> tuple[Lane, ...]:
        """Instances by number, then the parts of the scores, then the trainer."""
        return tuple(
            Lane(
                name=name,
                start=track.start,
                end=self._now if track.left_at is None else track.left_at,
                spans=(*track.spans, *track.open_span(self._now)),
            )
            for name, track in sorted(self._tracks.items(), key=lambda item: _place(item[0]))
        )

    def _resume(self, since: float, now: float) -> None:
        """Nothing happened since the last entry: the processes were gone."""
        for track in self._tracks.values():
            if track.left_at is None:
                track.switch(DOWN, since)
                track.switch(None, now)

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                for number in range(schedule.num_instances):
                    self._instance(InstanceId(number))
                for part in schedule.score_parts:
                    self._scores(part)
                if schedule.trains:
                    self._track(TRAINER)
            case (
                ev.InstanceStarted(instance=instance, version=version)
                | ev.WeightsPulled(instance=instance, version=version)
            ):
                self._instance(instance).switch(None, self._now)
                self._instance(instance).version = version
            case ev.InstanceLost(instance=instance) | ev.PullFailed(instance=instance):
                self._instance(instance).switch(None, self._now)
                self._end_lanes()
            case ev.InstanceStopped() | ev.InstanceRetired() | ev.RunResumed():
                self._end_lanes()
            case ev.MemoryReleased(instance=instance) if self._run.instance(instance).is_gone:
                self._end_lanes()
            case ev.MemoryReleased(instance=instance) if self._is_round_open:
                self._instance(instance).switch(LENT, self._now)
            case ev.RolloutReported(instance=instance) | ev.ResponsesAborted(instance=instance):
                self._stop_generating(instance)
            case ev.ResponsesScored(part=part):
                self._scores(part).switch(SCORING if self._run.scores.is_awaited(part) else None, self._now)
            case ev.TrainerReached(version=version):
                is_behind = version < self._run.state.version
                self._track(TRAINER).switch(CATCHING_UP if is_behind else None, self._now)
            case ev.StepTrained() | ev.CheckpointSaved() | ev.CheckpointFailed() | ev.CheckpointSkipped():
                self._track(TRAINER).switch(None, self._now)  # two steps in a row are two spans
                self._show_trainer()
            case ev.GradientsAccumulated() | ev.WeightsPublished() | ev.TrainingFailed() | ev.TrainerLost():
                self._show_trainer()

    def _command(self, command: do.Command) -> None:
        match command:
            case do.StartInstance(instance=instance):
                self._instance(instance).come_back(self._now)
                self._instance(instance).switch(STARTING, self._now)
            case do.KillInstance(instance=instance):
                self._instance(instance).switch(ENDING, self._now)
            case do.PullWeights(instance=instance):
                self._instance(instance).come_back(self._now)
                self._instance(instance).switch(LOADING, self._now)
            case do.Submit(instance=instance):
                self._instance(instance).switch(GENERATING, self._now)
            case do.Score(part=part):
                self._scores(part).switch(SCORING, self._now)
            case do.OpenRound() | do.CloseRound():
                self._is_round_open = isinstance(command, do.OpenRound)
            case do.KillTrainer():
                self._track(TRAINER).switch(ENDING, self._now)
            case do.StartTrainer():
                self._track(TRAINER).switch(STARTING, self._now)
            case do.Accumulate() | do.FinishStep() | do.DropStep() | do.SaveCheckpoint() | do.PublishWeights():
                self._show_trainer()

    def _end_lanes(self) -> None:
        for number, instance in self._run.state.instances.items():
            if instance.is_gone:
                self._instance(number).leave(self._now)

    def _stop_generating(self, instance: InstanceId) -> None:
        track = self._instance(instance)
        if track.kind == GENERATING and instance not in self._run.generating:
            track.switch(None, self._now)

    def _show_trainer(self) -> None:
        state = self._run.state
        otherwise = PUBLISHING if state.publishing is not None else None
        self._track(TRAINER).switch(_WORDS[state.orders[0].work] if state.orders else otherwise, self._now)

    def _instance(self, instance: InstanceId) -> _Track:
        return self._track(f"instance {instance}")

    def _scores(self, part: Part) -> _Track:
        schedule = self._run.state.schedule
        is_alone = schedule is None or schedule.score_parts == (Part.FUNCTION,)
        return self._track(REWARDS if is_alone else PART_LANES[part])

    def _track(self, name: str) -> _Track:
        if name not in self._tracks:
            self._tracks[name] = _Track(start=self._now)
        return self._tracks[name]


def _place(name: str) -> tuple[int, int]:
    if name.startswith("instance "):
        return 0, int(name.removeprefix("instance "))
    return (1, SCORE_LANES.index(name)) if name in SCORE_LANES else (2, 0)
