"""A model of the training worker: its trainer, its version, its weight channel and the step in progress.

Every method answers over the link. If the trainer cannot do something, the answer is ``Refused``: the step in progress
is dropped, and later messages for that step are refused as well.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import torch
from safetensors import SafetensorError

from tailrace.core.ids import Version
from tailrace.store.record_frame import DamagedStore
from tailrace.trainer.batch import in_groups
from tailrace.trainer.ranks.ranks import ALONE, Ranks
from tailrace.trainer.trainer import Trainer
from tailrace.workers.link import Link
from tailrace.workers.messages import (
    Accumulate,
    Accumulated,
    FinishStep,
    Forward,
    Loaded,
    LogprobsComputed,
    ModelInit,
    ModelReady,
    Refused,
    Save,
    Saved,
    SaveFailed,
    StepFinished,
)
from tailrace.workers.publishing import Publishing
from tailrace.workers.weight_outlet import open_outlet

_CANNOT = (FloatingPointError, torch.OutOfMemoryError, ValueError, DamagedStore, OSError)


class HeldModel:
    def __init__(self, link: Link, init: ModelInit, ranks: Ranks = ALONE) -> None:
        """``ranks``: the workers that train this model together."""
        self.name = init.name
        self._link = link
        self._trainer = Trainer(
            init.model_path,
            model=init.model,
            settings=init.trainer,
            algorithm=init.algorithm,
            temperature=init.temperature,
            max_response_length=init.max_response_length,
            max_steps=init.max_steps,
            seed=init.seed,
            ranks=ranks,
        )
        is_cuda = self._trainer.model.device.type == "cuda"
        self._leaves_between_pieces = is_cuda and init.leaves_between_pieces
        self._gives_cache_back = is_cuda and (init.is_colocated or init.leaves_between_pieces)
        if init.checkpoint is not None:
            self._trainer.load(init.checkpoint)
        outlet = open_outlet(self._trainer, ranks, name=init.channel_name, choice=init.trainer.weight_channel)
        self.channel = outlet.address
        self.publishing = Publishing(
            link,
            outlet.sink,
            outlet.weights,
            model=init.name,
            device=self._trainer.model.device,
            on_written=self._give_cache_back,
        )
        self._step_s = 0.0
        """Seconds that the step in progress took so far."""
        self._refusal: str | None = None
        """Why the step in progress cannot be finished; None: it can."""

    def ready(self) -> ModelReady:
        return ModelReady(name=self.name, version=self._trainer.version, channel=self.channel)

    def accumulate(self, message: Accumulate) -> None:
        start = time.monotonic()
        if not self._is_at(message.version):
            return
        try:
            samples = message.batch.read()
            self._trainer.accumulate(in_groups(samples), message.loss, replicas=message.replicas)
        except _CANNOT as error:
            self._refuse(error)
            return
        if self._leaves_between_pieces:
            self._give_cache_back()
        seconds = time.monotonic() - start
        self._step_s += seconds
        self._link.send(
            Accumulated(
                model=self.name,
                version=message.version,
                num_responses=len(samples),
                seconds=seconds,
                piece=message.piece,
            )
        )

    def drop_step(self, version: Version) -> None:
        """Forget what was accumulated. A step that was refused stays refused: the run ends because of it."""
        if version == self._trainer.version:
            self._trainer.drop_step()
            self._step_s = 0.0

    def finish_step(self, message: FinishStep) -> None:
        start = time.monotonic()
        if not self._is_at(message.version):
            return
        self.publishing.finish()
        try:
            result = self._trainer.finish_step(message.optimizer, dict(message.rates))
        except _CANNOT as error:
            self._refuse(error)
            return
        self._give_cache_back()
        seconds, self._step_s = self._step_s + time.monotonic() - start, 0.0
        metrics = tuple(result.metrics.items())
        self._link.send(StepFinished(model=self.name, version=result.version, seconds=seconds, metrics=metrics))

    def forward(self, message: Forward) -> None:
        try:
            samples = message.batch.read()
            found = self._trainer.forward(samples)
        except _CANNOT as error:
            self._link.send(Refused(reason=str(error)))
            return
        names = (sample.response_id for sample in samples)
        logprobs = tuple(zip(names, found, strict=True))
        self._link.send(LogprobsComputed(model=self.name, version=self._trainer.version, logprobs=logprobs))

    def save(self, message: Save) -> None:
        start = time.monotonic()
        try:
            self._trainer.save(message.directory)
        except (OSError, SafetensorError, ValueError) as error:
            # The files are not a complete checkpoint; on a full disk their space is needed.
            shutil.rmtree(message.directory, ignore_errors=True)
            self._link.send(SaveFailed(model=self.name, version=message.version, reason=str(error)))
            return
        self._link.send(Saved(model=self.name, version=message.version, seconds=time.monotonic() - start))

    def load(self, directory: Path) -> None:
        self.publishing.finish()
        try:
            self._trainer.load(directory)
        except (OSError, SafetensorError, ValueError) as error:
            self._link.send(Refused(reason=f"{directory} could not be loaded: {error}"))
            return
        self._step_s, self._refusal = 0.0, None
        self._link.send(Loaded(model=self.name, version=self._trainer.version))

    def _give_cache_back(self) -> None:
        """If others may use the device next: give back what torch keeps for the next pass (activations, gradients that
        are not there any more, weights in the rollout's precision). Weights, optimizer state, reference model and
        critic stay."""
        if self._gives_cache_back:
            torch.cuda.empty_cache()

    def _is_at(self, version: Version) -> bool:
        """Whether the step from this version can continue. If not, answer ``Refused``."""
        reason = self._refusal
        if version != self._trainer.version:
            reason = f"asked to train version {version}, holds {self._trainer.version}"
        if reason is not None:
            self._link.send(Refused(reason=reason))
        return reason is None

    def _refuse(self, error: Exception) -> None:
        self._trainer.drop_step()
        self._refusal, self._step_s = str(error), 0.0
        self._link.send(Refused(reason=str(error)))
