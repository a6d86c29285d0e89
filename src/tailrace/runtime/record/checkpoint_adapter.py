"""Checkpoints of a whole run: the trainer's files, the core's snapshot, and the end of payload they cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.core import codec
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import ResponseId, Version
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.recorder import Recorder
from tailrace.store.payload_store import PayloadStore


class CheckpointAdapter:
    """``begin`` takes the snapshot at the moment the core asked for it; ``complete`` makes the checkpoint appear.

    Both may be slow. Call ``begin`` between two events; ``complete`` may run at any time, in any thread.
    """

    def __init__(
        self,
        checkpoints: CheckpointFolder,
        *,
        coordinator: Coordinator,
        recorder: Recorder,
        store: PayloadStore,
        keeps_payload: bool,
    ) -> None:
        self._checkpoints, self._coordinator, self._recorder = checkpoints, coordinator, recorder
        self._store, self._keeps_payload = store, keeps_payload
        self._state: dict[str, Any] = {}
        self._directory: Path | None = None
        """Where the trainer's files of the checkpoint in progress are."""
        self._covered: set[ResponseId] = set()

    def begin(self, version: Version) -> Path:
        """Take a snapshot of the run and return the directory for the trainer's files."""
        self._state = {
            "version": version,
            "coordinator": self._coordinator.snapshot(),
            "schedule": codec.encode(self._coordinator.schedule),
            **self._recorder.snapshot(),
        }
        # Responses that the core no longer holds are trained into these weights, evaluated, or dropped.
        self._covered = set(self._store.held()) - self._coordinator.live()
        self._directory = self._checkpoints.begin(version)
        return self._directory

    def complete(self, version: Version, seconds: float) -> ev.CheckpointSaved | ev.CheckpointFailed:
        """Complete the checkpoint. ``seconds``: how long writing the trainer's files took."""
        try:
            self._complete(version)
        except OSError as error:
            return ev.CheckpointFailed(version=version, reason=str(error))
        return ev.CheckpointSaved(version=version, seconds=seconds)

    def _complete(self, version: Version) -> None:
        if self._directory is not None and not any(self._directory.iterdir()):
            raise FileNotFoundError(
                f"the training worker has written to another disk than that of {self._directory}:"
                " output_dir must be a folder that all machines share"
            )
        self._recorder.sync()
        self._store.sync()
        self._checkpoints.complete(version, self._state)
        self._recorder.pack(self._state["journal_size"])
        if not self._keeps_payload:
            self._store.release(self._covered)
            self._store.compact()
