"""Writes the journal, the metrics and the messages for the user, entry by entry."""

from __future__ import annotations

import re
from typing import Any

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.core.outcomes import Outcome, Part
from tailrace.observe.costs.prediction import Prediction
from tailrace.observe.display.display import Display
from tailrace.observe.guarded import Complain, Guarded
from tailrace.observe.journal import journal_segments
from tailrace.observe.journal.journal_file import JournalFile
from tailrace.observe.journal.run_files import logs_of
from tailrace.observe.metrics.metrics_file import read_rows
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.sinks import Sinks
from tailrace.runtime.record.measurements import NOTHING_MEASURED, Measurements
from tailrace.runtime.record.resume import RecalledRun
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.runtime.record.summarizer import Summarizer

_WITHOUT_REWARD = re.compile(r"reward/num_without|eval/.*/without_reward")
SEGMENT_BYTES = 4 * 1024 * 1024
"""Bytes by which the journal must grow before the next checkpoint closes a segment of it."""


class Recorder:
    """The one writer of journal and metrics. Whatever only observes is switched off where it breaks."""

    def __init__(
        self,
        directory: RunDirectory,
        past: RecalledRun,
        *,
        display: Display,
        sinks: Sinks,
        prediction: Prediction | None,
        complain: Complain,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """``prediction``: compares the cost model with measured speeds; None: no comparison."""
        self._path, self._segment_bytes = directory.journal, segment_bytes
        self._journal = JournalFile.open(directory.journal)
        self._journal.truncate(past.journal_size)
        self._display, self._sinks = display, sinks
        self._summarizer = Guarded(
            "summary", lambda: Summarizer(directory.path, log=directory.logs / "summaries.log"), complain
        )
        self._prediction = None if prediction is None else Guarded("prediction", lambda: prediction, complain)
        self._now = past.now
        self._explained: set[tuple[Part, Outcome]] = set()
        self._has_explained_missing = False
        self._is_stopping = False
        """Whether the run takes no scores any more, because it saves and then ends."""
        self._metrics = _open_metrics(directory, past, complain)
        self._take_over(directory, past, complain)

    def _take_over(self, directory: RunDirectory, past: RecalledRun, complain: Complain) -> None:
        """Take over what happened before this start."""
        summary = self._metrics.ask(lambda metrics: metrics.summary)
        self.summary: Row = {} if summary is None else summary
        """The newest value of every metric."""
        missed = self._metrics.ask(lambda metrics: metrics.missed)
        entries = iter(past.tail if missed is None else missed)
        # An old part of the journal may be damaged: then the metrics are switched off, and the run goes on.
        while (entry := self._metrics.ask(lambda metrics: next(entries, None))) is not None:
            self._measure(entry)
        self._metrics.tell(lambda metrics: metrics.caught_up())
        run = self._metrics.ask(lambda metrics: metrics.run())
        if run is not None and not past.is_new:
            rows = Guarded("earlier rows", lambda: read_rows(directory.metrics), complain)
            self._display.begin(run, rows.ask(lambda found: found) or [])

    def record(self, *entries: Entry) -> None:
        self._journal.append(*entries)
        is_saved = any(isinstance(entry.event, ev.CheckpointSaved) for entry in entries)
        if is_saved and self._journal.open_bytes >= self._segment_bytes:
            self._journal.close_segment()
        for entry in entries:
            self._now = entry.now
            self._display.entry(entry)
            self._explain(entry.event)
            for command in entry.commands:
                self._explain_command(command)
            for row in self._measure(entry):
                self._explain_row(row)
                self._display.row(row)
                self._sinks.write(row)

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs so that recording can continue from here."""
        measured = self._metrics.ask(lambda metrics: metrics.snapshot())
        return {"journal_size": self._journal.size, "now": self._now, **(measured or NOTHING_MEASURED)}

    def sync(self) -> None:
        self._journal.sync()
        self._metrics.tell(lambda metrics: metrics.sync())

    def pack(self, until: int) -> None:
        """Compress the part of the journal, up to byte ``until``, that a checkpoint covers. Any thread may call it."""
        if journal_segments.pack(self._path, until=until):
            self._summarizer.tell(lambda summarizer: summarizer.begin())

    def measured_costs(self) -> ev.CostsMeasured | None:
        """Return the costs of the engines' steps where the cost model was found wrong and could be measured again."""
        if self._prediction is None:
            return None
        return self._prediction.ask(lambda found: found.measure() if found.is_off else None)

    def close(self) -> None:
        self._journal.close()
        self._metrics.tell(lambda metrics: metrics.close())
        self._display.close()
        self._sinks.close()
        self._summarizer.tell(lambda summarizer: summarizer.end())

    def _measure(self, entry: Entry) -> list[Row]:
        """Return the rows that the entry completes."""
        extra: Row = {}
        if self._prediction is not None:
            self._prediction.tell(lambda prediction: prediction.feed(entry))
            if isinstance(entry.event, ev.StepTrained):
                extra = self._prediction.ask(lambda prediction: prediction.metrics()) or {}
        return self._metrics.ask(lambda metrics: metrics.feed(entry, extra)) or []

    def _explain(self, event: ev.Event) -> None:
        """Print a message about events that the user should know of at once."""
        match event:
            case ev.StopRequested(saves=True):
                self._is_stopping = True
            case ev.ResponsesScored() if not self._is_stopping:
                self._explain_failures(event)
            case ev.InstanceLost(instance=instance, reason=reason):
                self._display.say(f"instance {instance} is lost: {reason}")
            case ev.CheckpointSkipped(version=version, reason=reason):
                self._display.say(f"warning: no checkpoint of step {version}: {reason}")
            case ev.CostsMeasured(error=error, fitted_error=fitted):
                told = f"costs of a decode step measured: tokens/s were predicted {error:.0%} off, now {fitted:.0%}"
                self._display.say(told)

    def _explain_command(self, command: do.Command) -> None:
        """Print a message about decisions that the user should know of at once."""
        if isinstance(command, do.ReturnToSize):
            self._display.say(
                f"warning: no instance of parallel size {command.broken_size} can be started ({command.reason}); the"
                f" run goes back to size {command.parallel_size}"
            )

    def _explain_failures(self, event: ev.ResponsesScored) -> None:
        """Print what went wrong once for each kind of failure. The line of each step counts the failures."""
        for scored in event.scores:
            kind = event.part, scored.outcome
            if scored.outcome not in (Outcome.OK, Outcome.ABORTED, Outcome.ABSTAINED) and kind not in self._explained:
                self._explained.add(kind)
                told = f"reward of {scored.response}: {scored.outcome.value}: {scored.detail}"
                self._display.say(f"{told} (see {logs_of(event.part)})")

    def _explain_row(self, row: Row) -> None:
        """Print once that no reward applies to some responses. No part of their scores has failed, so no event says
        it."""
        count = sum(value for name, value in row.items() if _WITHOUT_REWARD.fullmatch(name))
        if count and not self._has_explained_missing:
            self._has_explained_missing = True
            who = "1 response has" if count == 1 else f"{count:.0f} responses have"
            self._display.say(f"{who} the score 0 (invalid), because no reward function applies")


def _open_metrics(directory: RunDirectory, past: RecalledRun, complain: Complain) -> Guarded[Measurements]:
    """Metrics that the checkpoint holds but that cannot be read are computed again from the journal."""
    stored = past.metrics
    kept = Guarded("metrics of the checkpoint", lambda: None if stored is None else Metrics.restore(stored), complain)
    metrics = kept.ask(lambda metrics: metrics)
    return Guarded(
        "metrics",
        lambda: Measurements(directory, past, metrics),
        complain,
        leave=lambda measurements: measurements.close(),
    )
