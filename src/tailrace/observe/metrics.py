"""Metrics of a run: a pure fold over the journal. One row per optimizer step, one per evaluation.

``feed`` an entry, get the rows it completes. Everything but the groups ``timing_s``, ``perf`` and ``idle`` is a
function of what was sampled and trained, so in deterministic mode it repeats exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.trajectory import Finish

Row = dict[str, Any]
TIMED_GROUPS = ("timing_s/", "perf/", "idle/")
"""Prefixes of metrics that depend on the machine and the hour."""


@dataclass(slots=True, kw_only=True)
class Done:
    """A response that ended."""

    length: int
    is_clipped: bool
    oldest_version: int
    """The oldest version that produced any of its tokens."""
    outcome: Outcome | None = None
    score: float = 0.0
    reward_s: float = 0.0
    extras: tuple[tuple[str, float], ...] = ()


@dataclass(slots=True, kw_only=True)
class Clock:
    """When things happened in the current step."""

    step_began: float = 0.0
    first_submit: float | None = None
    last_finish: float = 0.0
    train_began: float = 0.0
    publish_s: float = 0.0
    pull_s: float = 0.0
    save_s: float = 0.0
    busy_s: dict[InstanceId, float] = field(default_factory=dict)
    """Seconds each instance had work."""
    num_tokens: int = 0
    """Generated since the step before."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """All the fold remembers between entries."""

    responses: dict[TrajectoryId, Done] = field(default_factory=dict)
    first_version: dict[TrajectoryId, int] = field(default_factory=dict)
    """Of unfinished responses that have tokens."""
    running: dict[InstanceId, dict[TrajectoryId, None]] = field(default_factory=dict)
    busy_since: dict[InstanceId, float] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    lengths: dict[TrajectoryId, int] = field(default_factory=dict)
    """Tokens of unfinished responses."""
    left_out: dict[TrajectoryId, Done] = field(default_factory=dict)
    """Responses of groups that were filtered or dropped since the step before."""
    training: tuple[TrajectoryId, ...] = ()
    max_staleness: int | None = 0
    max_steps: int = 0
    train_source: str = ""
    num_instances_lost: int = 0
    num_preemptions: dict[InstanceId, int] = field(default_factory=dict)
    tokens_total: int = 0


class Metrics:
    def __init__(self, memory: Memory | None = None) -> None:
        self._memory = memory or Memory()

    @classmethod
    def restore(cls, snapshot: Any) -> Metrics:
        return cls(codec.decode(Memory, snapshot))

    def snapshot(self) -> Any:
        return codec.encode(self._memory)

    def feed(self, entry: Entry) -> list[Row]:
        """Take note of one entry and return the rows it completes."""
        rows = self._event(entry.event, entry.now)
        for command in entry.commands:
            rows += self._command(command, entry.now)
        return rows

    def _event(self, event: ev.Event, now: float) -> list[Row]:
        memory, clock = self._memory, self._memory.clock
        match event:
            case ev.RunStarted(schedule=schedule):
                memory.max_steps, memory.train_source = schedule.max_steps, schedule.train_source
                memory.max_staleness = schedule.max_staleness
            case ev.RunResumed():
                memory.running.clear()
                memory.busy_since.clear()
            case ev.InstanceStarted() if clock.first_submit is None:
                clock.step_began = now  # the start of processes is not part of a step
            case ev.InstanceLost(instance=instance):
                memory.num_instances_lost += 1
                self._leave(instance, tuple(memory.running.get(instance, ())), now)
            case ev.RolloutReported():
                self._reported(event, now)
            case ev.ResponsesScored(scores=scores):
                for scored in scores:
                    if (done := memory.responses.get(scored.trajectory)) is not None:  # else it was given up
                        done.outcome, done.score = scored.outcome, scored.score if scored.outcome is Outcome.OK else 0.0
                        done.reward_s, done.extras = scored.seconds, scored.extras
            case ev.ResponsesAborted(instance=instance, aborted=aborted):
                for part in aborted:
                    self._grow(part.trajectory, max(part.length, memory.lengths.get(part.trajectory, 0)))
                    self._forget(part.trajectory)
                self._leave(instance, [part.trajectory for part in aborted], now)
            case ev.WeightsPublished(seconds=seconds):
                clock.publish_s += seconds
            case ev.WeightsPulled(seconds=seconds):
                clock.pull_s = max(clock.pull_s, seconds)
            case ev.CheckpointSaved(seconds=seconds):
                clock.save_s += seconds
            case ev.StepTrained():
                return [self._step_row(event, now)]
        return []

    def _command(self, command: do.Command, now: float) -> list[Row]:
        memory = self._memory
        match command:
            case do.Submit(instance=instance, dispatches=dispatches):
                if memory.clock.first_submit is None:
                    memory.clock.first_submit = now
                memory.running.setdefault(instance, {}).update(dict.fromkeys(d.trajectory for d in dispatches))
                memory.busy_since.setdefault(instance, now)
            case do.TrainStep(trajectories=trajectories):
                memory.training, memory.clock.train_began = trajectories, now
            case do.LeaveOut(filtered=filtered, dropped=dropped):
                gone = {*filtered, *dropped}
                memory.left_out |= {t: done for t, done in memory.responses.items() if t.group in gone}
                self._forget_groups(gone)
            case do.CloseRound(deferred=deferred, dropped=dropped):
                self._forget_groups({*deferred, *dropped})
            case do.CancelScores(trajectories=trajectories):
                for trajectory in trajectories:
                    self._forget(trajectory)
            case do.CloseEvaluation():
                return [self._eval_row(command)]
        return []

    def _reported(self, event: ev.RolloutReported, now: float) -> None:
        memory = self._memory
        memory.num_preemptions[event.instance] = event.num_preemptions
        for progressed in event.progressed:
            memory.first_version.setdefault(progressed.trajectory, event.version)
            self._grow(progressed.trajectory, progressed.length)
        for finished in event.finished:
            self._grow(finished.trajectory, finished.length)
            if finished.finish is Finish.INTERRUPTED:
                if finished.length:
                    memory.first_version.setdefault(finished.trajectory, event.version)
                continue
            memory.responses[finished.trajectory] = Done(
                length=finished.length,
                is_clipped=finished.finish is Finish.LENGTH,
                oldest_version=memory.first_version.pop(finished.trajectory, event.version),
            )
            memory.lengths.pop(finished.trajectory, None)
            if finished.trajectory.group.source == memory.train_source:
                memory.clock.last_finish = now
        self._leave(event.instance, [part.trajectory for part in event.finished], now)

    def _grow(self, trajectory: TrajectoryId, length: int) -> None:
        memory = self._memory
        new = length - memory.lengths.get(trajectory, 0)
        memory.lengths[trajectory] = length
        memory.tokens_total += new
        memory.clock.num_tokens += new

    def _leave(self, instance: InstanceId, trajectories: Sequence[TrajectoryId], now: float) -> None:
        """These do not run on the instance any more."""
        memory = self._memory
        running = memory.running.setdefault(instance, {})
        for trajectory in trajectories:
            running.pop(trajectory, None)
        if not running and (since := memory.busy_since.pop(instance, None)) is not None:
            self._count_busy(instance, since, now)

    def _count_busy(self, instance: InstanceId, since: float, now: float) -> None:
        clock = self._memory.clock
        clock.busy_s[instance] = clock.busy_s.get(instance, 0.0) + now - max(since, clock.step_began)

    def _forget(self, trajectory: TrajectoryId) -> None:
        for known in (self._memory.responses, self._memory.first_version, self._memory.lengths):
            known.pop(trajectory, None)

    def _forget_groups(self, groups: set[GroupId]) -> None:
        """What still runs for them is counted on until its end is reported."""
        memory = self._memory
        running = {trajectory for each in memory.running.values() for trajectory in each}
        for trajectory in [t for t in (*memory.responses, *memory.first_version, *memory.lengths) if t.group in groups]:
            memory.responses.pop(trajectory, None)
            memory.first_version.pop(trajectory, None)
            if trajectory not in running:
                memory.lengths.pop(trajectory, None)

    def _step_row(self, event: ev.StepTrained, now: float) -> Row:
        memory = self._memory
        trained = {t: memory.responses[t] for t in memory.training}
        self._forget_groups({t.group for t in trained})
        everyone = [*trained.values(), *memory.left_out.values()]
        row: Row = {"step": event.version}
        row |= _reward_metrics(everyone)
        row |= _length_metrics(everyone)
        row |= _group_metrics(trained)
        row["groups/num_left_out"] = len({t.group for t in memory.left_out})
        row |= _staleness_metrics(
            [event.version - 1 - done.oldest_version for done in trained.values()], memory.max_staleness
        )
        row |= dict(event.metrics)
        row |= {"data/epoch": max(t.group.epoch for t in trained)}
        row |= self._timing(event, now, everyone)
        memory.training, memory.left_out = (), {}
        memory.clock = Clock(step_began=now)
        return row

    def _timing(self, event: ev.StepTrained, now: float, responses: list[Done]) -> Row:
        memory, clock = self._memory, self._memory.clock
        step_s = max(now - clock.step_began, 1e-9)
        began = clock.first_submit if clock.first_submit is not None else clock.step_began
        instances = max(len(memory.running), 1)
        for instance, since in memory.busy_since.items():
            self._count_busy(instance, since, now)
        return {
            "timing_s/step": step_s,
            "timing_s/gen": max(clock.last_finish - began, 0.0),
            "timing_s/reward": max(clock.train_began - clock.last_finish, 0.0),
            "timing_s/reward_fn_max": max(done.reward_s for done in responses),
            "timing_s/update_actor": event.seconds,
            "timing_s/update_weights": clock.publish_s + clock.pull_s,
            "timing_s/save": clock.save_s,
            "timing_s/since_start": now,
            "perf/tokens_per_s": clock.num_tokens / step_s,
            "perf/samples_per_s": len(responses) / step_s,
            "perf/tokens_total": memory.tokens_total,
            "perf/num_preemptions": sum(memory.num_preemptions.values()),
            "perf/num_instances_lost": memory.num_instances_lost,
            "idle/rollout_ratio": _share(1.0 - sum(clock.busy_s.values()) / (step_s * instances)),
            "idle/trainer_ratio": _share(1.0 - event.seconds / step_s),
        }

    def _eval_row(self, command: do.CloseEvaluation) -> Row:
        memory, name = self._memory, command.source
        groups: dict[GroupId, list[Done]] = {group: [] for group in command.groups}
        for trajectory in sorted(t for t in memory.responses if t.group in groups):
            groups[trajectory.group].append(memory.responses.pop(trajectory))
        k = max(len(members) for members in groups.values())
        everyone = [done for members in groups.values() for done in members]
        return {
            "step": command.version,
            f"eval/{name}/avg@{k}": fmean(fmean(done.score for done in members) for members in groups.values()),
            f"eval/{name}/pass@{k}": fmean(max(done.score for done in members) for members in groups.values()),
            f"eval/{name}/response_length/mean": fmean(done.length for done in everyone),
            f"eval/{name}/response_length/max": max(done.length for done in everyone),
            f"eval/{name}/clip_ratio": fmean(done.is_clipped for done in everyone),
            f"eval/{name}/reward_failures": sum(done.outcome is not Outcome.OK for done in everyone),
        }


def _reward_metrics(responses: list[Done]) -> Row:
    scores = [done.score for done in responses]
    row: Row = {
        "reward/mean": fmean(scores),
        "reward/std": pstdev(scores),
        "reward/max": max(scores),
        "reward/min": min(scores),
    }
    for outcome in Outcome:
        if outcome is not Outcome.OK:
            row[f"reward/num_{outcome.value}"] = sum(done.outcome is outcome for done in responses)
    names = sorted({name for done in responses for name, _ in done.extras})
    for name in names:
        row[f"reward/{name}/mean"] = fmean(value for done in responses for key, value in done.extras if key == name)
    return row


def _length_metrics(responses: list[Done]) -> Row:
    ordered = sorted(done.length for done in responses)
    return {
        "response_length/mean": fmean(ordered),
        "response_length/min": ordered[0],
        "response_length/p50": percentile(ordered, 0.50),
        "response_length/p95": percentile(ordered, 0.95),
        "response_length/max": ordered[-1],
        "response_length/clip_ratio": fmean(done.is_clipped for done in responses),
    }


def _group_metrics(trained: dict[TrajectoryId, Done]) -> Row:
    groups: dict[GroupId, list[float]] = {}
    for trajectory, done in trained.items():
        groups.setdefault(trajectory.group, []).append(done.score)
    equal = [scores[0] for scores in groups.values() if len(set(scores)) == 1]
    return {
        "groups/num": len(groups),
        "groups/num_samples": len(trained),
        "groups/frac_zero_std": len(equal) / len(groups),
        "groups/frac_all_good": sum(score > 0 for score in equal) / len(groups),
        "groups/frac_all_bad": sum(score <= 0 for score in equal) / len(groups),
    }


def _staleness_metrics(ages: list[int], bound: int | None) -> Row:
    """Versions between the one trained and the oldest one that wrote a token."""
    return {
        "staleness/mean": fmean(ages),
        "staleness/max": max(ages),
        "staleness/violations": sum(bound is not None and age > bound for age in ages),
    }


def percentile(ordered: list[int], share: float) -> int:
    """The nearest-rank percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
