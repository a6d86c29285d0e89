"""Reads the finished responses of another run: tokens from its payload store, finish reasons from its journal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tailrace.core.events import Finished, RolloutReported
from tailrace.core.ids import ResponseId
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Unservable
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.run_files import RunFiles
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.segment import ResponsePayload


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedResponse:
    response: ResponsePayload
    finish: Finish


class SavedRollouts:
    """The finished responses in a run directory. Nothing in the directory is changed."""

    def __init__(self, run: Path, endings: dict[ResponseId, Finished], payload: PayloadReader) -> None:
        self._run, self._endings, self._payload = run, endings, payload

    @classmethod
    def open(cls, run: Path) -> Self:
        """Open a run directory; ``ValueError`` if there is no run in it."""
        files = RunFiles.find(run)
        events = (entry.event for _, entry in journal_file.read(files.journal))
        reports = (event for event in events if isinstance(event, RolloutReported))
        endings = {ending.response: ending for report in reports for ending in report.finished}
        return cls(run, endings, PayloadReader.open(files.payload))

    def find(self, response: ResponseId) -> SavedResponse:
        """The saved response; ``Unservable`` if the run did not finish it or did not keep it."""
        ending = self._endings.get(response)
        if ending is None:
            raise Unservable(f"the run {self._run} has no finished response {response}")
        if self._payload.length(response) != ending.length:
            raise Unservable(
                f"the run {self._run} has not kept response {response}; a training run keeps its responses"
                " with keep_rollouts = true"
            )
        return SavedResponse(response=self._payload.response(response), finish=ending.finish)
