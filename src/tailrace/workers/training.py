"""The training worker: does one thing after the other, in the order asked, and publishes beside it.

* A checkpoint asked for after step v and before step v + 1 holds version v.
* A version asked for there is published while step v + 1 adds up its gradients, and before its optimizer step.
"""

from __future__ import annotations

import shutil
import time

import torch
from safetensors import SafetensorError

from tailrace.core.ids import Version
from tailrace.trainer.batch import in_groups
from tailrace.trainer.trainer import Trainer
from tailrace.weights.shared_memory import WeightWriter, channel_path, layout_of
from tailrace.workers.link import Link, connect
from tailrace.workers.messages import (
    Publish,
    Refused,
    Save,
    Saved,
    SaveFailed,
    Train,
    Trained,
    TrainingInit,
    TrainingReady,
)
from tailrace.workers.publishing import Publishing


class TrainingWorker:
    def __init__(self, link: Link, init: TrainingInit) -> None:
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
        )
        if init.checkpoint is not None:
            self._trainer.load(init.checkpoint)
        layout = layout_of(self._trainer.named_weights())
        self.channel = channel_path(init.channel_name, layout)
        self._publishing = Publishing(
            link,
            WeightWriter.create(self.channel, layout),
            self._trainer.named_weights,
            device=self._trainer.model.device,
        )

    @property
    def version(self) -> Version:
        return self._trainer.version

    def handle(self, message: object) -> None:
        match message:
            case Train():
                self._train(message)
            case Publish(version=version):
                self._publishing.begin(version)
            case Save():
                self._save(message)
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _train(self, message: Train) -> None:
        start = time.monotonic()
        if message.version != self.version:
            self._link.send(Refused(reason=f"asked to train version {message.version}, holds {self.version}"))
            return
        try:
            self._trainer.accumulate(in_groups(message.samples))
            self._publishing.finish()
            result = self._trainer.finish_step()
        except (FloatingPointError, torch.OutOfMemoryError) as error:
            self._link.send(Refused(reason=str(error)))
            return
        seconds = time.monotonic() - start
        self._link.send(Trained(version=result.version, seconds=seconds, metrics=tuple(result.metrics.items())))

    def _save(self, message: Save) -> None:
        start = time.monotonic()
        try:
            self._trainer.save(message.directory)
        except (OSError, SafetensorError) as error:
            # Whatever was written is no checkpoint, and on a full disk its room is needed.
            shutil.rmtree(message.directory, ignore_errors=True)
            self._link.send(SaveFailed(version=message.version, reason=str(error)))
            return
        self._link.send(Saved(version=message.version, seconds=time.monotonic() - start))


def main() -> None:
    link = connect()
    init = link.receive(None)
    assert isinstance(init, TrainingInit)
    worker = TrainingWorker(link, init)
    link.send(TrainingReady(version=worker.version, channel=worker.channel))
    while True:
        worker.handle(link.receive(None))


if __name__ == "__main__":
    main()
