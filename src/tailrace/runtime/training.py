"""The training worker as a process: commands become messages, answers and its death become events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.runtime.process import WorkerProcess
from tailrace.trainer.batch import Sample
from tailrace.workers.messages import (
    Publish,
    Published,
    Refused,
    Save,
    Saved,
    SaveFailed,
    Train,
    Trained,
    TrainingInit,
    TrainingReady,
)


class TrainingLost(Exception):
    """The training worker ended while the run was being prepared."""


class Training:
    """Owns the training process. ``perform`` is for the driver; ``prepare`` and ``redo`` for a resuming run."""

    def __init__(
        self,
        *,
        samples: Callable[[do.TrainStep], tuple[Sample, ...]],
        post: Callable[[ev.Event], None],
        on_saved: Callable[[Version], None],
        log: Path,
    ) -> None:
        self._samples, self._post, self._on_saved, self._log = samples, post, on_saved, log
        self._process: WorkerProcess | None = None
        self._answers: asyncio.Queue[object] | None = None

    async def prepare(self, init: TrainingInit) -> Version:
        """Start the process and wait until it holds the model."""
        self._answers = asyncio.Queue()
        self._process = WorkerProcess.start(
            "tailrace.workers.training",
            init,
            name="training",
            log=self._log,
            on_message=self._hear,
            on_exit=self._lose,
        )
        ready = await self._answer()
        assert isinstance(ready, TrainingReady)
        return ready.version

    async def redo(self, command: do.TrainStep) -> Trained:
        """Take a step again that the journal says was taken after the checkpoint."""
        self._send(Train(version=command.version, samples=self._samples(command)))
        trained = await self._answer()
        if not isinstance(trained, Trained):
            raise TrainingLost(f"step {command.version + 1} could not be taken again: {trained}")
        return trained

    def go_live(self) -> None:
        """From here on answers become events."""
        self._answers = None

    def perform(self, command: do.TrainStep | do.PublishWeights) -> None:
        match command:
            case do.TrainStep(version=version):
                self._send(Train(version=version, samples=self._samples(command)))
            case do.PublishWeights(version=version):
                self._send(Publish(version=version))

    def save(self, version: Version, directory: Path) -> None:
        self._send(Save(version=version, directory=directory))

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(grace_s=2.0)

    def _send(self, message: object) -> None:
        # Without a process its death is already in the inbox.
        if self._process is not None:
            self._process.send(message)

    async def _answer(self) -> object:
        assert self._answers is not None
        answer = await self._answers.get()
        if isinstance(answer, TrainingLost):
            raise answer
        return answer

    def _hear(self, message: object) -> None:
        if self._answers is not None:
            self._answers.put_nowait(message)
            return
        match message:
            case Trained(version=version, seconds=seconds, metrics=metrics):
                self._post(ev.StepTrained(version=version, seconds=seconds, metrics=metrics))
            case Published(version=version, seconds=seconds):
                self._post(ev.WeightsPublished(version=version, seconds=seconds))
            case Saved(version=version, seconds=seconds):
                self._on_saved(version)
                self._post(ev.CheckpointSaved(version=version, seconds=seconds))
            case SaveFailed(version=version, reason=reason):
                self._post(ev.CheckpointFailed(version=version, reason=reason))
            case Refused(reason=reason):
                self._post(ev.TrainingFailed(reason=reason))
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _lose(self, reason: str) -> None:
        self._process = None
        if self._answers is not None:
            self._answers.put_nowait(TrainingLost(reason))
        else:
            self._post(ev.TrainingFailed(reason=reason))
