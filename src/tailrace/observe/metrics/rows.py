"""Metrics of a run: a pure fold over the journal. One row per optimizer step, one per evaluation.

``feed`` an entry, get the rows it completes. Everything but the groups ``timing_s``, ``perf``, ``idle``,
``scoring`` and ``round`` is a function of what was sampled and trained, so in deterministic mode it repeats exactly.

Seconds in which only evaluation responses run are ``timing_s/eval`` and part of no other metric but
``timing_s/since_start``; all others belong to the training step.
"""

from __future__ import annotations

from typing import Any

from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Part
from tailrace.observe.metrics.memory import Clock, Memory
from tailrace.observe.metrics.natural_lengths import WINDOW_STEPS, LengthSample, natural_length_metrics
from tailrace.observe.metrics.part_metrics import elapse_parts, limit_metrics, note_limits, note_scores, part_metrics
from tailrace.observe.metrics.response_metrics import (
    evaluation_metrics,
    failure_metrics,
    group_metrics,
    length_metrics,
    reward_metrics,
    staleness_metrics,
)
from tailrace.observe.metrics.round_metrics import elapse_round, note_round, round_metrics
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.records import ResponseRecord
from tailrace.observe.shared_fold.run_fold import RunFold

Row = dict[str, Any]
TIMED_GROUPS = ("timing_s/", "perf/", "idle/", "scoring/", "round/")
"""Prefixes of metrics that depend on the machine and the hour."""


class Metrics:
    def __init__(self, run: RunFold | None = None, memory: Memory | None = None) -> None:
        """``run``: a fold that several accounts share; whoever shares it calls ``hear`` and not ``feed``."""
        self._run = run or RunFold()
        self._memory = memory or Memory()

    @classmethod
    def restore(cls, snapshot: Any) -> Metrics:
        return cls(RunFold.restore(snapshot["run"]), codec.decode(Memory, snapshot["memory"]))

    def snapshot(self) -> Any:
        return {"run": self._run.snapshot(), "memory": codec.encode(self._memory)}

    def feed(self, entry: Entry) -> list[Row]:
        """Take one entry into account and return the rows it completes."""
        return [row for news in self._run.feed(entry) for row in self.hear(news)]

    def hear(self, news: News) -> list[Row]:
        """Take one message into account and return the rows it completes."""
        memory, clock, now = self._memory, self._memory.clock, self._training_time(news)
        if news.heard:
            self._count_tokens(news)
        if news.gone or news.trained:
            memory.lengths[-1].add(filter(self._run.is_training, (*news.trained, *news.gone)))
        note_round(self._run, memory, news)
        match news.message:
            case TimeSinceLast(since=since, is_outage=False):
                self._elapse(news.now - since)
            case ev.RolloutReported() if any(self._run.is_training(response) for response in news.ended):
                clock.last_finish = now
            case ev.InstanceStarted() if clock.first_submit is None:
                clock.begin(now)  # the start of processes is not part of a step
            case ev.InstanceLost():
                memory.num_instances_lost += 1
            case ev.ResponsesScored(part=part):
                note_scores(self._run, clock.parts, memory.cases, part, news)
            case do.Score() | do.LimitCases():
                note_limits(self._run, clock.limits, memory.cases, news.message)
            case do.OpenRound(round=number, is_long=is_long) if self._has_long_rounds:
                memory.long_rounds[number] = is_long
            case ev.WeightsPublished(seconds=seconds):
                clock.publish_s += seconds
            case ev.WeightsPulled(seconds=seconds):
                clock.pull_s = max(clock.pull_s, seconds)
            case ev.CheckpointSaved(seconds=seconds):
                clock.save_s += seconds
            case ev.StepTrained():
                return [self._step_row(news.message, news)]
            case do.Submit() if clock.first_submit is None:
                clock.first_submit = now
            case do.ReportDropped():
                self._report_dropped(news.message, news)
            case do.CloseEvaluation():
                return [self._eval_row(news.message, news)]
        return []

    def _elapse(self, seconds: float) -> None:
        run, memory = self._run, self._memory
        memory.elapse(seconds, num_generating=len(run.generating), is_evaluating=run.is_evaluating)
        elapse_round(run, memory, seconds)
        if run.is_training_beside_rollout:
            memory.clock.update_hidden_s += seconds
        if not run.is_evaluating:
            exposed_s, hidden_s = elapse_parts(run, memory.clock.parts, seconds)
            memory.clock.reward_exposed_s += exposed_s
            memory.clock.reward_hidden_s += hidden_s

    @property
    def _has_long_rounds(self) -> bool:
        return self._run.state.schedule is not None and self._run.state.schedule.defers

    def _training_time(self, news: News) -> float:
        """Run time without the seconds of evaluation so far."""
        return news.now - self._memory.eval_s

    def _count_tokens(self, news: News) -> None:
        new = sum(count for _, count in news.heard)
        trained = sum(count for response, count in news.heard if self._run.is_training(response))
        self._memory.tokens_total += new
        self._memory.clock.num_tokens += trained
        self._memory.clock.num_eval_tokens += new - trained

    def _report_dropped(self, command: do.ReportDropped, news: News) -> None:
        groups = {*command.filtered, *command.dropped}
        self._memory.num_dropped += len(groups)
        scored = [response for response in news.dropped if response.outcome is not None]
        self._memory.dropped |= {response.id: response for response in scored if response.id.group in groups}

    def _step_row(self, event: ev.StepTrained, news: News) -> Row:
        memory, schedule = self._memory, self._run.state.schedule
        trained = {response.id: response for response in news.trained}
        everyone = [*news.trained, *memory.dropped.values()]
        row: Row = {"step": event.version}
        row |= reward_metrics(everyone)
        # A response whose reward failed may have been left out of its group: it still failed.
        row |= failure_metrics([*everyone, *news.dropped])
        row |= length_metrics(everyone)
        row |= natural_length_metrics(memory.lengths)
        row |= group_metrics(trained)
        row["groups/num_dropped"] = memory.num_dropped
        bound = schedule.max_staleness if schedule is not None else 0
        row |= staleness_metrics([response.age(event.version - 1) for response in news.trained], bound)
        row |= dict(event.metrics)
        if self._has_long_rounds:
            row["groups/is_long_round"] = int(memory.long_rounds.pop(event.version - 1, False))
        if (counts := memory.rounds.pop(event.version - 1, None)) is not None:
            row |= round_metrics(counts)
        row |= {"data/epoch": max(r.group.epoch for r in trained)}
        row |= self._timing(event, news, everyone)
        memory.dropped, memory.num_dropped = {}, 0
        memory.lengths = [*memory.lengths[1 - WINDOW_STEPS :], LengthSample()]
        memory.clock = Clock(step_began=self._training_time(news))
        return row

    def _timing(self, event: ev.StepTrained, news: News, responses: list[ResponseRecord]) -> Row:
        memory, clock = self._memory, self._memory.clock
        step_s = max(self._training_time(news) - clock.step_began, 1e-9)
        began = clock.first_submit if clock.first_submit is not None else clock.step_began
        instances = self._run.state.instances.values()
        num_instances = max(sum(each.has_had_work and not each.is_gone for each in instances), 1)
        return {
            "timing_s/step": step_s,
            "timing_s/gen": max(clock.last_finish - began, 0.0),
            "timing_s/reward_exposed": clock.reward_exposed_s,
            "timing_s/reward_hidden": clock.reward_hidden_s,
            "timing_s/reward_fn_max": max(response.reward_s for response in responses),
            "timing_s/update_actor": event.seconds,
            "timing_s/update_hidden": clock.update_hidden_s,
            "timing_s/update_weights": clock.publish_s + clock.pull_s,
            "timing_s/save": clock.save_s,
            "timing_s/eval": clock.eval_s,
            "timing_s/since_start": news.now,
            "perf/tokens_per_s": clock.num_tokens / step_s,
            "perf/eval_tokens": clock.num_eval_tokens,
            "perf/samples_per_s": len(responses) / step_s,
            "perf/tokens_total": memory.tokens_total,
            "perf/num_preemptions": sum(instance.num_preemptions for instance in instances),
            "perf/num_instances_lost": memory.num_instances_lost,
            "idle/rollout_ratio": _share(1.0 - clock.instance_s / (step_s * num_instances)),
            "idle/trainer_ratio": _share(1.0 - event.seconds / step_s),
            **part_metrics(clock.parts, step_s),
            **limit_metrics(clock.limits, memory.cases, clock.parts.get(Part.TESTS)),
        }

    def _eval_row(self, command: do.CloseEvaluation, news: News) -> Row:
        groups: dict[GroupId, list[ResponseRecord]] = {group: [] for group in command.groups}
        for response in news.evaluated:
            groups[response.id.group].append(response)
        return {"step": command.version} | evaluation_metrics(command.source, list(groups.values()))


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
