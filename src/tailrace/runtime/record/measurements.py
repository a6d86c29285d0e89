"""The metrics of a run as it goes on: rows in ``metrics.jsonl``, and the newest value of every metric.

A checkpoint holds the state of the metrics. If it holds none, because they were switched off by an error, or if rows of
``metrics.jsonl`` are gone, a resumed run computes all of them again from its journal. Until that is done the file stays
as it was: if the journal cannot be read, no row is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.journal import journal_file
from tailrace.observe.metrics.metrics_file import MetricsFile, has_bytes
from tailrace.observe.metrics.rows import Metrics, Row
from tailrace.observe.shared_fold.run_fold import RunFold
from tailrace.runtime.record.resume import RecalledRun
from tailrace.runtime.record.run_directory import RunDirectory

NOTHING_MEASURED: dict[str, Any] = {"metrics": None, "metrics_size": 0, "summary": {}}
"""What a checkpoint holds if the metrics are switched off."""


class Measurements:
    """Feed it the entries of ``missed`` first and call ``caught_up``; then feed it those to come."""

    def __init__(self, directory: RunDirectory, past: RecalledRun, kept: Metrics | None) -> None:
        """``kept``: the metrics of the checkpoint; None: there are none."""
        is_known = kept is not None and has_bytes(directory.metrics, past.metrics_size)
        self._metrics = kept if kept is not None and is_known else Metrics()
        self._path = directory.metrics
        self._is_draft = not is_known
        draft = self._path.with_name(self._path.name + ".draft")
        self._file = MetricsFile(draft) if self._is_draft else MetricsFile(self._path, size=past.metrics_size)
        self.summary: Row = dict(past.summary) if is_known else {}
        """The newest value of every metric."""
        # Without a checkpoint the tail is the whole journal.
        is_whole = is_known or past.checkpoint is None
        whole = (entry for _, entry in journal_file.read(directory.journal))
        self.missed: Iterable[Entry] = past.tail if is_whole else whole
        """Entries of the past that the metrics have not taken into account."""

    def caught_up(self) -> None:
        """Note that the past has been taken into account: rows that were computed again replace the old ones."""
        if self._is_draft:
            self._file.replace(self._path)
            self._is_draft = False

    def feed(self, entry: Entry, extra: Row) -> list[Row]:
        """Take an entry into account; return the rows that it completes. ``extra``: more columns of a step's row."""
        rows = self._metrics.feed(entry)
        for row in rows:
            if isinstance(entry.event, ev.StepTrained):
                row |= extra
            self._file.append(row)
            self.summary |= row
        return rows

    def snapshot(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs."""
        return {
            "metrics": self._metrics.snapshot(),
            "metrics_size": self._file.size,
            "summary": dict(self.summary),
        }

    def run(self) -> RunFold:
        """Return a copy of what the metrics know of the run: what runs where."""
        return RunFold.restore(self._metrics.snapshot()["run"])

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
        if self._is_draft:
            self._file.remove()
