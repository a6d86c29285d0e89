"""The adapter of the training worker: turns commands into messages, and answers and the end of the worker into events.

A worker that continues a run first repeats the steps after its checkpoint and reports each. Rollout continues
meanwhile. When the worker ends, ``start`` may be called again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT, Launcher, WorkerHandle, WorkerSpec
from tailrace.runtime.launchers.worker_group import WorkerGroup
from tailrace.runtime.record.taken_steps import TakenStep
from tailrace.weights.address import ChannelAddress
from tailrace.weights.slots.channel_files import disk_line, remove_channel
from tailrace.workers.messages import (
    POLICY,
    Accumulate,
    Accumulated,
    DropStep,
    FinishStep,
    ModelReady,
    Publish,
    Published,
    Refused,
    Save,
    Saved,
    SaveFailed,
    StepFinished,
    TrainingInit,
    TrainingReady,
)
from tailrace.workers.sample_transfer import Batch


class TrainingAdapter:
    """Owns the training worker."""

    def __init__(
        self,
        *,
        launch: Launcher,
        batch: Callable[[do.Accumulate], Batch],
        post: Callable[[ev.Event], None],
        on_saved: Callable[[Version, float], None],
        work: Callable[[Callable[[], None]], object] = lambda job: job(),
        env: Callable[[int], Mapping[str, str]] = lambda rank: {},
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """``on_saved`` is called with version and seconds when the files of a checkpoint are written. It posts the
        event of the checkpoint. ``work`` runs a job off the event loop, in the order in which jobs are given. ``env``:
        more environment variables of the worker of a rank. ``say`` tells the user a line."""
        self._env, self._say = env, say
        self._work = work
        self._launch, self._batch, self._post, self._on_saved = launch, batch, post, on_saved
        self.channel: ChannelAddress | None = None
        """Where published weights can be pulled from."""
        self._worker: WorkerHandle | None = None
        self.incarnation = 0
        """Number of the last start. Every event carries it."""
        self._announced: int | None = None
        """Number of a start that is to come; None: there is none."""
        self._killed_for: str | None = None
        self._to_redo: deque[TakenStep] = deque()
        self._is_catching_up = True
        self._num_replicas = 1

    def announce(self, incarnation: int) -> None:
        """Note that ``start`` will be called, once earlier commands are done with. ``kill`` ends this start too."""
        self._announced = incarnation

    def is_announced(self, incarnation: int) -> bool:
        """Whether this start is still to come."""
        return self._announced == incarnation

    def start(self, init: TrainingInit, to_redo: Sequence[TakenStep], incarnation: int = 0) -> None:
        self.incarnation, self._killed_for, self._announced = incarnation, None, None
        self._to_redo, self._is_catching_up = deque(to_redo), True
        self._num_replicas = init.num_replicas
        specs = [self._spec(init, rank) for rank in range(init.num_ranks)]
        if len(specs) == 1:
            self._worker = self._launch(specs[0], hear=self._hear, lose=self._lose)
        else:
            self._worker = WorkerGroup.start(specs, self._launch, hear=self._hear, lose=self._lose)

    def _spec(self, init: TrainingInit, rank: int) -> WorkerSpec:
        return WorkerSpec(
            name=f"training-{rank}" if rank else "training",
            entry="tailrace.workers.training_worker:serve",
            init=replace(init, rank=rank),
            env=OPENMP_PASSIVE_WAIT | dict(self._env(rank)),
        )

    def perform(self, command: do.Accumulate | do.DropStep | do.FinishStep | do.PublishWeights) -> None:
        match command:
            case do.Accumulate():
                self._send(self._piece(command))
            case do.DropStep(version=version):
                self._send(DropStep(model=POLICY, version=version))
            case do.FinishStep(version=version):
                self._send(FinishStep(model=POLICY, version=version))
            case do.PublishWeights(version=version):
                self._send(Publish(model=POLICY, version=version))

    def save(self, version: Version, directory: Path) -> None:
        self._send(Save(model=POLICY, version=version, directory=directory))

    def kill(self, reason: str | None = None) -> None:
        """End the worker at once, also one that is stopped. ``reason``: why, for ``TrainerLost``; with a reason, a
        start that was announced is ended too."""
        if self._announced is not None and reason is not None:
            self.incarnation, self._announced = self._announced, None
            self._tell(ev.TrainerLost(reason=reason))
            return
        # If the worker has just ended, it is no longer here, and TrainerLost is already in the inbox.
        if self._worker is not None:
            self._killed_for = reason
            self._worker.kill()

    async def stop(self) -> None:
        if self._worker is not None:
            await self._worker.stop(grace_s=2.0)
        self._remove_channel()

    def _remove_channel(self) -> None:
        """Remove the weight channel. An instance that is pulling from it has it open and can finish."""
        if self.channel is not None:
            remove_channel(self.channel)
            self.channel = None

    def _piece(self, command: do.Accumulate) -> Accumulate:
        return Accumulate(
            model=POLICY,
            version=command.version,
            batch=self._batch(command),
            piece=command.piece,
            replicas=command.replicas or None,
        )

    def _send(self, message: object) -> None:
        worker = self._worker  # another thread may lose it meanwhile
        if worker is not None:  # if there is none, TrainerLost is already in the inbox
            worker.send(message)

    def _hear(self, message: object) -> None:
        match message:
            case TrainingReady(models=(ModelReady(version=version, channel=channel),)):
                if self.channel != channel:
                    self._remove_channel()
                self.channel = channel
                if channel is not None and (line := disk_line(channel)) is not None:
                    self._say(line)
                self._catch_up(version)
            case StepFinished(version=version) if self._is_catching_up:
                self._catch_up(version)
            case Accumulated() if self._is_catching_up:
                pass
            case Accumulated(version=version, num_responses=count, seconds=seconds, piece=piece):
                self._tell(ev.GradientsAccumulated(version=version, num_responses=count, seconds=seconds, piece=piece))
            case StepFinished(version=version, seconds=seconds, metrics=metrics):
                self._tell(ev.StepTrained(version=version, seconds=seconds, metrics=metrics))
            case Published(version=version, seconds=seconds):
                self._tell(ev.WeightsPublished(version=version, seconds=seconds))
            case Saved(version=version, seconds=seconds):
                self._on_saved(version, seconds)
            case SaveFailed(version=version, reason=reason):
                self._tell(ev.CheckpointFailed(version=version, reason=reason))
            case Refused(reason=reason):
                self._tell(ev.TrainingFailed(reason=reason))
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _catch_up(self, version: Version) -> None:
        self._tell(ev.TrainerReached(version=version))
        self._is_catching_up = bool(self._to_redo)
        if self._to_redo:
            step, worker = self._to_redo.popleft(), self._worker
            self._work(lambda: self._redo(step, version, worker))

    def _redo(self, step: TakenStep, version: Version, worker: WorkerHandle | None) -> None:
        """Repeat a step, unless its worker has ended since: the next one begins from its own checkpoint."""
        for batch in step.batches:
            is_possible = max(batch.replicas, default=0) < self._num_replicas  # there may be fewer now
            message = self._piece(batch if is_possible else replace(batch, replicas=()))
            if worker is self._worker:
                self._send(message)
        if worker is self._worker:
            self._send(FinishStep(model=POLICY, version=version, rates=step.rates))

    def _lose(self, reason: str) -> None:
        self._worker = None
        # The channel stays until the next start: the core may not know of the loss yet and let an instance pull.
        self._tell(ev.TrainerLost(reason=self._killed_for or reason))

    def _tell(self, event: ev.TrainerEvent) -> None:
        self._post(replace(event, incarnation=self.incarnation))
