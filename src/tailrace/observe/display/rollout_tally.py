"""Progress and results of a run that only generates and scores: a fold over the journal."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from tailrace.core import events as ev
from tailrace.core.ids import GroupId
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.observe.metrics.response_metrics import percentile
from tailrace.observe.metrics.rows import Row
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.run_fold import RunFold

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


class RolloutTally:
    """Feed it a journal from its first entry."""

    def __init__(self) -> None:
        self._run = RunFold()
        self.num_prompts_done = 0
        self.busy_s = 0.0
        """Seconds in which at least one instance had work."""
        self._lengths: list[int] = []
        self._scores: list[float] = []
        self._num_truncated = 0
        self._scored: Counter[GroupId] = Counter()

    def feed(self, entry: Entry) -> None:
        for news in self._run.feed(entry):
            self._hear(news)

    def _hear(self, news: News) -> None:
        match news.message:
            case TimeSinceLast(since=since, is_outage=False) if self._run.generating:
                self.busy_s += news.now - since
            case ev.RolloutReported():
                self._lengths += [response.length for response in news.ended]
                self._num_truncated += sum(response.is_clipped for response in news.ended)
            case ev.ResponsesScored() | ev.RunResumed():
                for scored, _ in news.scored:
                    self._score(scored)

    def _score(self, scored: ev.Scored) -> None:
        group, schedule = scored.response.group, self._run.state.schedule
        self._scores.append(scored.score if scored.outcome is Outcome.OK else 0.0)
        self._scored[group] += 1
        if self._scored[group] == (schedule.group_size if schedule is not None else 1):
            del self._scored[group]
            self.num_prompts_done += 1

    def row(self) -> Row:
        """The numbers so far. At least one response must be scored."""
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
