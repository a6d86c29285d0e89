"""Checkpoints of a whole run: the trainer's files, the core's snapshot, and the end of payload they cover."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import TrajectoryId, Version
from tailrace.runtime.checkpoints import Checkpoints
from tailrace.runtime.recorder import Recorder
from tailrace.store.payload_store import PayloadStore


class Checkpointing:
    """``begin`` takes the snapshot at the moment the core asked for it; ``complete`` makes the checkpoint appear."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        *,
        coordinator: Coordinator,
        recorder: Recorder,
        store: PayloadStore,
        keeps_payload: bool,
    ) -> None:
        self._checkpoints, self._coordinator, self._recorder = checkpoints, coordinator, recorder
        self._store, self._keeps_payload = store, keeps_payload
        self._state: dict[str, Any] = {}
        self._covered: set[TrajectoryId] = set()

    def begin(self, version: Version) -> Path:
        """Remember the run as of now and return the directory for the trainer's files."""
        self._state = {
            "version": version,
            "coordinator": self._coordinator.snapshot(),
            **self._recorder.snapshot(),
        }
        # What the core no longer knows is trained into these weights, evaluated or dropped.
        self._covered = set(self._store.held()) - self._coordinator.live()
        return self._checkpoints.begin(version)

    def complete(self, version: Version) -> None:
        self._recorder.sync()
        self._store.sync()
        self._checkpoints.complete(version, self._state)
        if not self._keeps_payload:
            self._store.forget(self._covered)
            self._store.compact()
