"""Writes the journal, the metrics and the messages for the user, entry by entry."""

from __future__ import annotations

from typing import Any

from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome
from tailrace.observe.costs.prediction import Prediction
from tailrace.observe.display.display import Display
from tailrace.observe.journal import journal_segments
from tailrace.observe.journal.journal_file import JournalFile
from tailrace.observe.metrics.metrics_file import MetricsFile
from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks import Sinks
from tailrace.runtime.resume import Past
from tailrace.runtime.run_directory import RunDirectory
from tailrace.runtime.summarizer import Summarizer

SEGMENT_BYTES = 4 * 1024 * 1024
"""Bytes by which the journal must grow before the next checkpoint closes a segment of it."""


class Recorder:
    """The one writer of journal and metrics."""

    def __init__(
        self,
        directory: RunDirectory,
        past: Past,
        *,
        display: Display,
        sinks: Sinks,
        prediction: Prediction | None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """``prediction``: compares the cost model with measured speeds; None: no comparison."""
        self._path, self._segment_bytes = directory.journal, segment_bytes
        self._summarizer = Summarizer(directory.path, log=directory.logs / "summaries.log")
        self._journal = JournalFile.open(directory.journal)
        self._journal.truncate(past.journal_size)
        self._metrics = past.metrics
        self._file = MetricsFile(directory.metrics, size=past.metrics_size)
        self._display, self._sinks, self._prediction = display, sinks, prediction
        self._now = past.now
        self.summary: Row = dict(past.summary)
        """The newest value of every metric."""
        self._explained: set[Outcome] = set()
        for entry in past.tail:
            self._note(entry, is_news=False)

    def record(self, *entries: Entry) -> None:
        self._journal.append(*entries)
        is_saved = any(isinstance(entry.event, ev.CheckpointSaved) for entry in entries)
        if is_saved and self._journal.open_bytes >= self._segment_bytes:
            self._journal.close_segment()
        for entry in entries:
            self._display.entry(entry)
            self._note(entry, is_news=True)

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs so that recording can continue from here."""
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

    def pack(self, until: int) -> None:
        """Compress the part of the journal, up to byte ``until``, that a checkpoint covers. Any thread may call it."""
        if journal_segments.pack(self._path, until=until):
            self._summarizer.begin()

    def close(self) -> None:
        self._journal.close()
        self._file.close()
        self._display.close()
        self._sinks.close()
        self._summarizer.end()

    def _note(self, entry: Entry, *, is_news: bool) -> None:
        self._now = entry.now
        if is_news:
            self._explain(entry.event)
        if self._prediction is not None:
            self._prediction.feed(entry)
        for row in self._metrics.feed(entry):
            if self._prediction is not None and isinstance(entry.event, ev.StepTrained):
                row |= self._prediction.metrics()
            self._file.append(row)
            self.summary |= row
            if is_news:
                self._display.row(row)
                self._sinks.write(row)

    def _explain(self, event: ev.Event) -> None:
        """Print a message about events that the user should know of at once."""
        match event:
            case ev.ResponsesScored():
                self._explain_failures(event)
            case ev.InstanceLost(instance=instance, reason=reason):
                self._display.say(f"instance {instance} is lost: {reason}")
            case ev.CostsMeasured(error=error, fitted_error=fitted):
                told = f"costs of a decode step measured: tokens/s were predicted {error:.0%} off, now {fitted:.0%}"
                self._display.say(told)

    def _explain_failures(self, event: ev.ResponsesScored) -> None:
        """Print what went wrong once for each kind of failure. The line of each step counts the failures."""
        for scored in event.scores:
            if scored.outcome not in (Outcome.OK, Outcome.ABORTED, *self._explained):
                self._explained.add(scored.outcome)
                self._display.say(
                    f"reward of {scored.trajectory}: {scored.outcome.value}: {scored.detail} (see logs/reward-*.log)"
                )
