"""How far a run that only generates and scores has come, and what it has seen: a fold over the journal."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.core.trajectory import Finish
from tailrace.observe.metrics import Row
from tailrace.observe.response_metrics import percentile

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


class RolloutTally:
    def __init__(self) -> None:
        self.num_prompts_done = 0
        self.busy_s = 0.0
        """Seconds in which at least one instance had work."""
        self._lengths: list[int] = []
        self._scores: list[float] = []
        self._num_truncated = 0
        self._group_size = 1
        self._scored: Counter[GroupId] = Counter()
        self._running: Counter[InstanceId] = Counter()
        self._now = 0.0

    def feed(self, entry: Entry) -> None:
        if any(self._running.values()) and not isinstance(entry.event, ev.RunResumed):
            self.busy_s += entry.now - self._now
        self._now = entry.now
        self._event(entry.event)
        for command in entry.commands:
            if isinstance(command, do.Submit):
                self._running[command.instance] += len(command.dispatches)

    def _event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted(schedule=schedule):
                self._group_size = schedule.group_size
            case ev.RunResumed():
                self._running.clear()
            case ev.InstanceLost(instance=instance):
                del self._running[instance]
            case ev.RolloutReported(instance=instance, finished=finished):
                self._running[instance] -= len(finished)
                self._lengths += [end.length for end in finished]
                self._num_truncated += sum(end.finish is Finish.LENGTH for end in finished)
            case ev.ResponsesScored(scores=scores):
                for scored in scores:
                    self._score(scored)

    def _score(self, scored: ev.Scored) -> None:
        group = scored.trajectory.group
        self._scores.append(scored.score if scored.outcome is Outcome.OK else 0.0)
        self._scored[group] += 1
        if self._scored[group] == self._group_size:
            del self._scored[group]
            self.num_prompts_done += 1

    def row(self) -> Row:
        """The numbers so far; call it once something is scored."""
        ordered = sorted(self._lengths)
        return {
            "reward/mean": fmean(self._scores),
            "response_length/mean": fmean(ordered),
            **{f"response_length/{name}": percentile(ordered, share) for name, share in PERCENTILES.items()},
            "response_length/max": ordered[-1],
            "response_length/clip_ratio": self._num_truncated / len(ordered),
            "timing_s/gen": self.busy_s,
            "perf/tokens_total": sum(ordered),
            "perf/tokens_per_s": sum(ordered) / max(self.busy_s, 1e-9),
        }
