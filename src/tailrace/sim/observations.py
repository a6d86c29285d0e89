"""Extracts samples of costs from a journal, for ``calibrate``.

Samples of an engine come from its token clock (``observe/costs/token_clock.py``).

Samples of work that overlapped other work on the same devices are marked: ``overlaps`` holds pairs (seconds, fraction
of the instances that were busy) for the time during which an optimizer step and rollout ran together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.costs import PrefillWork
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Placement
from tailrace.observe.costs.token_clock import EngineSample, TokenClock


@dataclass(slots=True, kw_only=True)
class TrainingSample:
    """One piece of an optimizer step, or its finish."""

    tokens: float = 0.0
    """Tokens that all replicas would have computed in the same time. A piece that half of them compute counts twice. A
    finish computes none."""
    seconds: float
    overlaps: list[tuple[float, float]]
    is_first: bool
    """Whether it belongs to the first step of a trainer that had just started."""


@dataclass(slots=True)
class PartSeen:
    """What was seen of one part of scores."""

    part: Part
    seconds: list[float] = field(default_factory=list)
    """For each computed score: how long it kept a worker busy."""
    num_timeouts: int = 0
    abstained: dict[tuple[str, int], bool] = field(default_factory=dict)
    """For each problem, whether this part had no opinion on its last response."""
    ordered: dict[ResponseId, float] = field(default_factory=dict)
    """When each score was requested that has not come back."""
    _heard_at: float = 0.0

    def take(self, scores: Sequence[ev.Scored], now: float, *, num_workers: int) -> None:
        """Take scores that came back together."""
        computed = [scored for scored in scores if scored.outcome is not Outcome.ABSTAINED]
        ordered = [self.ordered.pop(scored.response, now) for scored in scores]
        for scored in scores:
            if scored.outcome is not Outcome.ABORTED:
                problem = scored.response.group.source, scored.response.group.prompt
                self.abstained[problem] = scored.outcome is Outcome.ABSTAINED
        good = [scored.seconds for scored in computed if scored.outcome is Outcome.OK]
        if self.part is Part.TESTS:
            self.seconds += good
        elif self.part is Part.JUDGE:  # what has the same seconds was computed in one pass
            self.seconds += [seconds / good.count(seconds) for seconds in good]
        elif good:  # the time of a function is short beside that of what it is sent, so it counts up to the report
            began = max(self._heard_at, min(ordered))
            self.seconds += [(now - began) * num_workers / len(good)] * len(good)
        self.num_timeouts += sum(scored.outcome is Outcome.TIMEOUT for scored in computed)
        if computed:
            self._heard_at = now

    def stop(self) -> None:
        """The run was interrupted: nothing that was requested comes back."""
        self._heard_at = 0.0
        self.ordered.clear()


@dataclass(slots=True)
class Observations:
    """Feed it a journal from its first entry."""

    prompt_length: int
    """Mean tokens of a prompt. Journals do not contain it."""
    max_running: int = 1 << 30
    """Most responses that an instance generates at the same time. Others are queued inside it."""
    prefill_chunk: int | None = None
    """Most tokens that an instance prefills before one step, padding included; None: no limit and no padding."""
    length_classes: tuple[int, ...] = ()
    """Capacities of the rows of an instance's KV cache; none: it is not kept in rows."""
    num_replicas: int = 1
    """Replicas of the trainer. A piece of a step may name some of them."""
    engine: list[EngineSample] = field(default_factory=list)
    prefill: list[PrefillWork] = field(default_factory=list)
    """What instances with their devices to themselves prefilled between two reports."""
    pieces: list[TrainingSample] = field(default_factory=list)
    """Pieces of optimizer steps. A step that is not streamed is one piece."""
    finishes: list[TrainingSample] = field(default_factory=list)
    num_trainer_starts: int = 0
    """Starts of the trainer after which it took a step."""
    instance_start_s: list[float] = field(default_factory=list)
    trainer_start_s: list[float] = field(default_factory=list)
    publish_s: list[float] = field(default_factory=list)
    pull_s: list[float] = field(default_factory=list)
    release_s: list[float] = field(default_factory=list)
    save_s: list[float] = field(default_factory=list)
    num_reward_workers: Mapping[Part, int] = field(default_factory=dict)
    """Workers of each part of a score; one, where it does not say."""
    rewards: dict[Part, PartSeen] = field(default_factory=dict)
    lengths: dict[ResponseId, tuple[int, bool]] = field(default_factory=dict)
    """For each response that ended: its length, and whether its budget ended it."""
    offered: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, prompt index) of the training prompts, in order."""
    _train_source: str = ""
    _clocks: dict[InstanceId, TokenClock] = field(default_factory=dict)
    _prefilled: dict[InstanceId, PrefillWork] = field(default_factory=dict)
    """As of the last report."""
    _disturbed: set[InstanceId] = field(default_factory=set)
    """Instances that ran beside other work since their last report."""
    _parts: deque[do.Accumulate | do.FinishStep] = field(default_factory=deque)
    """Parts of the optimizer step in progress, pieces and finish, that were asked for and not reported. The trainer is
    at the first."""
    _asked: dict[object, float] = field(default_factory=dict)
    """When each kind of trainer command, and each instance's pull or release, was requested."""
    _trainer_free_at: float = 0.0
    _is_trainer_warm: bool = False
    _has_trained: bool = False
    """Whether the run took a step."""
    _starting: set[object] = field(default_factory=set)
    """The trainer and the instances that have not started yet."""
    _num_instances: int = 1
    _is_apart: bool = False
    """Whether rollout and training have devices of their own."""
    _overlaps: list[tuple[float, float]] = field(default_factory=list)
    """Overlaps of the part in progress."""
    _now: float = 0.0

    def feed(self, entry: Entry) -> None:
        self._elapse(entry.now)
        self._event(entry.event, entry.now)
        for command in entry.commands:
            match command:
                case do.Submit(instance=instance, dispatches=dispatches):
                    self._clock(instance).submit(dispatches, entry.now)
                case do.Accumulate() | do.FinishStep():
                    self._ask_for(command, entry.now)
                case do.DropStep():
                    self._forget_step()
                case do.PublishWeights() | do.SaveCheckpoint():
                    self._asked[type(command)] = entry.now
                case do.Score(responses=responses, part=part):
                    self._seen(part).ordered.update(dict.fromkeys(responses, entry.now))
                case do.StartTrainer():
                    self._asked[type(command)] = entry.now
                    self._starting.add(do.StartTrainer)
                case do.StartInstance(instance=instance):
                    self._asked[instance] = entry.now
                    self._starting.add(instance)
                case do.PullWeights(instance=instance) | do.ReleaseMemory(instance=instance):
                    self._asked[instance] = entry.now

    def _elapse(self, now: float) -> None:
        """Record what runs beside an optimizer step, and beside the start of a process."""
        busy = [clock for clock in self._clocks.values() if clock.is_busy]
        if self._starting or self._is_training_beside:
            self._disturbed.update(self._clocks)
        if self._starting:
            for clock in busy:
                clock.note_start()
        if self._is_training_beside and busy and now > self._now:
            seconds, share = now - self._now, len(busy) / self._num_instances
            self._overlaps.append((seconds, share))
            for clock in busy:
                clock.overlap(seconds, share)
        self._now = now

    def _event(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                self._train_source, self._num_instances = schedule.train_source, schedule.num_instances
                self._is_apart = schedule.placement is Placement.DISAGGREGATED
                self._trainer_free_at, self._now, self._has_trained = 0.0, now, False
                self._stop()
            case ev.RunResumed():
                self._stop()
            case ev.InstanceStarted(instance=instance):
                self._starting.discard(instance)
                self.instance_start_s.append(now - self._asked[instance])
            case ev.TrainerReached():
                self._starting.discard(do.StartTrainer)
                if not self._has_trained:  # a later start repeats the steps after the checkpoint
                    self.trainer_start_s.append(now - self._asked[do.StartTrainer])
            case ev.PromptsOffered(source=source, prompts=prompts) if source == self._train_source:
                self.offered += prompts
            case ev.InstanceLost(instance=instance):
                self._clocks.pop(instance, None)
                self._prefilled.pop(instance, None)
                self._starting.discard(instance)
            case ev.RolloutReported():
                self._reported(event, now)
            case ev.ResponsesAborted(instance=instance, aborted=aborted):
                if (clock := self._clocks.get(instance)) is not None:
                    clock.drop(part.response for part in aborted)
            case ev.ResponsesScored(scores=scores, part=part):
                self._seen(part).take(scores, now, num_workers=self.num_reward_workers.get(part, 1))
            case ev.GradientsAccumulated(version=version, piece=piece):
                self._accumulated(version, piece, now)
            case ev.StepTrained():
                self._trained(now)
            case ev.TrainerLost():
                self._forget_step()
                self._is_trainer_warm = False
            case ev.WeightsPublished():
                self.publish_s.append(now - self._asked[do.PublishWeights])
            case ev.CheckpointSaved():
                self.save_s.append(self._trainer_took(do.SaveCheckpoint, now))
            case ev.WeightsPulled(instance=instance):
                self.pull_s.append(now - self._asked[instance])
            case ev.MemoryReleased(instance=instance):
                self.release_s.append(now - self._asked[instance])

    def _stop(self) -> None:
        self._clocks.clear()
        self._prefilled.clear()
        self._starting.clear()
        self._forget_step()
        self._is_trainer_warm = False
        for seen in self.rewards.values():
            seen.stop()

    def _seen(self, part: Part) -> PartSeen:
        return self.rewards.setdefault(part, PartSeen(part))

    def _ask_for(self, part: do.Accumulate | do.FinishStep, now: float) -> None:
        if not self._parts:
            self._asked[do.Accumulate] = now
        self._parts.append(part)

    @property
    def _is_training_beside(self) -> bool:
        """Whether the trainer computes on devices that instances use. What is lent to it, they have left."""
        if self._is_apart:
            return False
        part = self._parts[0] if self._parts else None
        return part is not None and not (isinstance(part, do.Accumulate) and part.replicas)

    def _tokens(self, piece: do.Accumulate) -> float:
        held = sum(self.lengths[response][0] for response in piece.responses)
        share = len(piece.replicas) / self.num_replicas if piece.replicas else 1.0
        return (held + self.prompt_length * len(piece.responses)) / share

    def _forget_step(self) -> None:
        self._overlaps = []
        self._parts.clear()

    def _accumulated(self, version: int, number: int, now: float) -> None:
        match self._parts:
            case [do.Accumulate() as part, *_] if (part.version, part.piece) == (version, number):
                self._parts.popleft()
                self.pieces.append(self._sample(now, self._tokens(part)))

    def _trained(self, now: float) -> None:
        if len(self._parts) == 1 and isinstance(self._parts[0], do.FinishStep):
            self.finishes.append(self._sample(now))
            self.num_trainer_starts += not self._is_trainer_warm
            self._is_trainer_warm = self._has_trained = True
        self._forget_step()

    def _sample(self, now: float, tokens: float = 0.0) -> TrainingSample:
        """Return the part of a step that ends now. The next one has no overlaps yet."""
        overlaps, self._overlaps = self._overlaps, []
        seconds, is_first = self._trainer_took(do.Accumulate, now), not self._is_trainer_warm
        return TrainingSample(tokens=tokens, seconds=seconds, overlaps=overlaps, is_first=is_first)

    def _trainer_took(self, kind: type[do.Command], now: float) -> float:
        """Return the seconds from the command, or from when the trainer became free, to the report."""
        began = max(self._asked[kind], self._trainer_free_at)
        self._trainer_free_at = now
        return now - began

    def _clock(self, instance: InstanceId) -> TokenClock:
        if instance not in self._clocks:
            self._clocks[instance] = TokenClock(
                prompt_length=self.prompt_length,
                max_running=self.max_running,
                hand_over=self.engine.append,
                prefill_chunk=self.prefill_chunk,
                length_classes=self.length_classes,
            )
        return self._clocks[instance]

    def _reported(self, event: ev.RolloutReported, now: float) -> None:
        for end in event.finished:
            if end.finish is not Finish.INTERRUPTED:
                self.lengths[end.response] = (end.length, end.finish is Finish.LENGTH)
        if (clock := self._clocks.get(event.instance)) is not None:
            clock.report(event, now)
        if event.prefill is not None:
            self._note_prefill(event.instance, event.prefill)

    def _note_prefill(self, instance: InstanceId, work: PrefillWork) -> None:
        before = self._prefilled.get(instance)
        if before is not None and instance not in self._disturbed:
            self.prefill.append(_since(before, work))
        self._disturbed.discard(instance)
        self._prefilled[instance] = work


def _since(before: PrefillWork, after: PrefillWork) -> PrefillWork:
    return PrefillWork(
        num_batches=after.num_batches - before.num_batches,
        num_tokens=after.num_tokens - before.num_tokens,
        seconds=after.seconds - before.seconds,
    )
