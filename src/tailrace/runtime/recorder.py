"""Everything that is written down about a run, entry by entry: journal, metrics, what a person sees."""

from __future__ import annotations

from typing import Any

from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.observe.display import Display
from tailrace.observe.journal_file import JournalFile
from tailrace.observe.metrics import Row
from tailrace.observe.metrics_file import MetricsFile
from tailrace.observe.sinks import Sinks
from tailrace.runtime.resume import Past
from tailrace.runtime.run_directory import RunDirectory


class Recorder:
    """The one writer of journal and metrics."""

    def __init__(self, directory: RunDirectory, past: Past, *, display: Display, sinks: Sinks) -> None:
        self._journal = JournalFile.open(directory.journal)
        self._journal.truncate(past.journal_size)
        self._metrics = past.metrics
        self._file = MetricsFile(directory.metrics, size=past.metrics_size)
        self._display, self._sinks = display, sinks
        self._now = past.now
        self.summary: Row = dict(past.summary)
        """The newest value of every metric."""
        self._explained: set[Outcome] = set()
        for entry in past.tail:
            self._note(entry, is_news=False)

    def record(self, entry: Entry) -> None:
        self._journal.append(entry)
        self._display.entry(entry)
        self._note(entry, is_news=True)

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint must know so that recording can go on from here."""
        return {
            "metrics": self._metrics.snapshot(),
            "metrics_size": self._file.size,
            "journal_size": self._journal.size,
            "now": self._now,
            "summary": dict(self.summary),
        }

    def sync(self) -> None:
        self._journal.sync()
        self._file.sync()

    def close(self) -> None:
        self._journal.close()
        self._file.close()
        self._display.close()
        self._sinks.close()

    def _note(self, entry: Entry, *, is_news: bool) -> None:
        self._now = entry.now
        if is_news:
            self._explain(entry.event)
        for row in self._metrics.feed(entry):
            self._file.append(row)
            self.summary |= row
            if is_news:
                self._display.row(row)
                self._sinks.write(row)

    def _explain(self, event: ev.Event) -> None:
        """What a person would want to hear of at once."""
        match event:
            case ev.ResponsesScored():
                self._explain_failures(event)
            case ev.InstanceLost(instance=instance, reason=reason):
                self._display.say(f"instance {instance} is lost: {reason}")

    def _explain_failures(self, event: ev.ResponsesScored) -> None:
        """Say once for each kind of failure what went wrong; the step lines count the rest."""
        for scored in event.scores:
            if scored.outcome not in (Outcome.OK, Outcome.CANCELLED, *self._explained):
                self._explained.add(scored.outcome)
                self._display.say(
                    f"reward of {scored.trajectory}: {scored.outcome.value}: {scored.detail} (see logs/reward-*.log)"
                )
