"""The training worker as a process: commands become messages, answers and its death become events.

A resumed run first takes the steps again that its journal has after the checkpoint, and reports each; rollout
instances start meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.runtime.process import TAKE_TURNS, WorkerProcess
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


class Training:
    """Owns the training process."""

    def __init__(
        self,
        *,
        samples: Callable[[do.TrainStep], tuple[Sample, ...]],
        post: Callable[[ev.Event], None],
        on_saved: Callable[[Version], None],
        log: Path,
    ) -> None:
        self._samples, self._post, self._on_saved, self._log = samples, post, on_saved, log
        self.channel: Path | None = None
        """Where published weights can be pulled from."""
        self._process: WorkerProcess | None = None
        self._to_redo: deque[do.TrainStep] = deque()
        self._is_catching_up = True

    def start(self, init: TrainingInit, to_redo: Sequence[do.TrainStep]) -> None:
        self._to_redo.extend(to_redo)
        self._process = WorkerProcess.start(
            "tailrace.workers.training",
            init,
            name="training",
            log=self._log,
            env=TAKE_TURNS,
            on_message=self._hear,
            on_exit=self._lose,
        )

    def perform(self, command: do.TrainStep | do.PublishWeights) -> None:
        match command:
            case do.TrainStep():
                self._send(self._train(command))
            case do.PublishWeights(version=version):
                self._send(Publish(version=version))

    def save(self, version: Version, directory: Path) -> None:
        self._send(Save(version=version, directory=directory))

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(grace_s=2.0)
        if self.channel is not None:
            self.channel.unlink(missing_ok=True)

    def _train(self, command: do.TrainStep) -> Train:
        return Train(version=command.version, samples=self._samples(command))

    def _send(self, message: object) -> None:
        if self._process is not None:  # without a process its death is already in the inbox
            self._process.send(message)

    def _hear(self, message: object) -> None:
        match message:
            case TrainingReady(version=version, channel=channel):
                self.channel = channel
                self._catch_up(version)
            case Trained(version=version) if self._is_catching_up:
                self._catch_up(version)
            case Trained(version=version, seconds=seconds, metrics=metrics):
                self._post(ev.StepTrained(version=version, seconds=seconds, metrics=metrics))
            case Published(version=version, seconds=seconds):
                self._post(ev.WeightsPublished(version=version, seconds=seconds))
            case Saved(version=version, seconds=seconds):
                self._complete(version, seconds)
            case SaveFailed(version=version, reason=reason):
                self._post(ev.CheckpointFailed(version=version, reason=reason))
            case Refused(reason=reason):
                self._post(ev.TrainingFailed(reason=reason))
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _catch_up(self, version: Version) -> None:
        assert self._process is not None
        self._post(ev.TrainerReached(version=version))
        self._is_catching_up = bool(self._to_redo)
        if self._to_redo:
            self._process.send(self._train(self._to_redo.popleft()))

    def _complete(self, version: Version, seconds: float) -> None:
        try:
            self._on_saved(version)
        except OSError as error:
            self._post(ev.CheckpointFailed(version=version, reason=str(error)))
        else:
            self._post(ev.CheckpointSaved(version=version, seconds=seconds))

    def _lose(self, reason: str) -> None:
        self._process = None
        self._post(ev.TrainingFailed(reason=reason))
