"""Metrics of a run: a pure fold over the journal. One row per optimizer step, one per evaluation.

``feed`` an entry, get the rows it completes. Everything but the groups ``timing_s``, ``perf`` and ``idle`` is a
function of what was sampled and trained, so in deterministic mode it repeats exactly.
"""

from __future__ import annotations

from typing import Any

from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.trajectory import Finish
from tailrace.observe.metrics_memory import Clock, Memory
from tailrace.observe.response_metrics import (
    Done,
    evaluation_metrics,
    failure_metrics,
    group_metrics,
    length_metrics,
    reward_metrics,
    staleness_metrics,
)

Row = dict[str, Any]
TIMED_GROUPS = ("timing_s/", "perf/", "idle/")
"""Prefixes of metrics that depend on the machine and the hour."""


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
                memory.train_source = schedule.train_source
                memory.max_staleness = schedule.max_staleness
                memory.keeps_deferred_tokens = schedule.keeps_deferred_tokens
            case ev.RunResumed():
                memory.running.clear()
                memory.busy_since.clear()
                for instance in [*memory.aborting]:
                    memory.forget_aborting(instance)
            case ev.InstanceStarted() if clock.first_submit is None:
                clock.step_began = now  # the start of processes is not part of a step
            case ev.InstanceLost(instance=instance):
                memory.num_instances_lost += 1
                memory.leave(instance, tuple(memory.running.get(instance, ())), now)
                memory.forget_aborting(instance)
            case ev.RolloutReported():
                self._reported(event, now)
            case ev.ResponsesScored(scores=scores):
                self._scored(scores, now)
            case ev.ResponsesAborted(instance=instance, aborted=aborted):
                for part in aborted:
                    memory.grow(part.trajectory, max(part.length, memory.lengths.get(part.trajectory, 0)))
                    memory.forget(part.trajectory)
                    memory.aborting.get(instance, {}).pop(part.trajectory, None)
                memory.leave(instance, [part.trajectory for part in aborted], now)
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
            case do.Abort(instance=instance, trajectories=trajectories):
                memory.aborting.setdefault(instance, {}).update(dict.fromkeys(trajectories))
            case do.TrainStep(trajectories=trajectories):
                memory.training = trajectories
            case do.LeaveOut(filtered=filtered, dropped=dropped, restarted=restarted):
                memory.leave_out({*filtered, *dropped})
                memory.forget_groups({*restarted})
            case do.OpenRound(restarted=restarted):
                memory.forget_groups({*restarted})
            case do.CloseRound(deferred=deferred, dropped=dropped):
                memory.forget_groups({*dropped} if memory.keeps_deferred_tokens else {*deferred, *dropped})
            case do.CancelScores(trajectories=trajectories):
                for trajectory in trajectories:
                    memory.forget(trajectory)
            case do.CloseEvaluation():
                return [self._eval_row(command)]
        return []

    def _reported(self, event: ev.RolloutReported, now: float) -> None:
        memory = self._memory
        memory.num_preemptions[event.instance] = event.num_preemptions
        for part in event.parts:
            memory.grow(part.trajectory, part.length)
            if part.length:
                memory.first_version.setdefault(part.trajectory, event.version)
        for finished in event.finished:
            if finished.finish is Finish.INTERRUPTED:
                continue
            memory.responses[finished.trajectory] = Done(
                length=finished.length,
                is_clipped=finished.finish is Finish.LENGTH,
                oldest_version=memory.first_version.pop(finished.trajectory, None),
            )
            memory.lengths.pop(finished.trajectory, None)
            if finished.trajectory.group.source == memory.train_source:
                memory.clock.last_finish = now
        memory.leave(event.instance, [part.trajectory for part in event.finished], now)

    def _scored(self, scores: tuple[ev.Scored, ...], now: float) -> None:
        memory = self._memory
        for scored in scores:
            if (done := memory.responses.get(scored.trajectory)) is None:
                continue  # it was given up
            done.outcome, done.score = scored.outcome, scored.score if scored.outcome is Outcome.OK else 0.0
            done.reward_s, done.extras = scored.seconds, scored.extras
            if scored.trajectory.group.source == memory.train_source and not memory.training:
                memory.clock.last_score = now

    def _step_row(self, event: ev.StepTrained, now: float) -> Row:
        memory = self._memory
        trained = {t: memory.responses[t] for t in memory.training}
        groups = {t.group for t in trained}
        # A response whose reward failed may have been left out of its group: it still failed.
        beside = [done for t, done in memory.responses.items() if t.group in groups and t not in trained]
        memory.forget_groups(groups)
        everyone = [*trained.values(), *memory.left_out.values()]
        row: Row = {"step": event.version}
        row |= reward_metrics(everyone)
        row |= failure_metrics([*everyone, *beside])
        row |= length_metrics(everyone)
        row |= group_metrics(trained)
        row["groups/num_left_out"] = memory.num_left_out
        row |= staleness_metrics([done.age(event.version - 1) for done in trained.values()], memory.max_staleness)
        row |= dict(event.metrics)
        row |= {"data/epoch": max(t.group.epoch for t in trained)}
        row |= self._timing(event, now, everyone)
        memory.training, memory.left_out, memory.num_left_out = (), {}, 0
        memory.clock = Clock(step_began=now)
        return row

    def _timing(self, event: ev.StepTrained, now: float, responses: list[Done]) -> Row:
        memory, clock = self._memory, self._memory.clock
        step_s = max(now - clock.step_began, 1e-9)
        began = clock.first_submit if clock.first_submit is not None else clock.step_began
        instances = max(len(memory.running), 1)
        for instance, since in memory.busy_since.items():
            memory.count_busy(instance, since, now)
        return {
            "timing_s/step": step_s,
            "timing_s/gen": max(clock.last_finish - began, 0.0),
            "timing_s/reward": max(clock.last_score - max(clock.last_finish, clock.step_began), 0.0),
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
        responses = self._memory.responses
        groups: dict[GroupId, list[Done]] = {group: [] for group in command.groups}
        for trajectory in sorted(t for t in responses if t.group in groups):
            groups[trajectory.group].append(responses.pop(trajectory))
        return {"step": command.version} | evaluation_metrics(command.source, list(groups.values()))


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
