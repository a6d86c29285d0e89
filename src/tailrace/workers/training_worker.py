"""The training worker: does one thing after the other, in the order asked, and publishes beside it.

A step is some ``Accumulate`` and one ``FinishStep``, or a ``DropStep`` instead of it. The worker holds models by name;
each has a step of its own.

* A checkpoint asked for after step v and before step v + 1 holds version v.
* A version asked for there is published while step v + 1 adds up its gradients, and before its optimizer step.
"""

from __future__ import annotations

from tailrace.trainer.ranks.ranks import ALONE, Ranks
from tailrace.workers.held_model import HeldModel
from tailrace.workers.link import Link
from tailrace.workers.meeting import meet
from tailrace.workers.messages import (
    Accumulate,
    DropStep,
    FinishStep,
    Forward,
    Load,
    Publish,
    Refused,
    Save,
    TrainingInit,
    TrainingReady,
)


class TrainingWorker:
    """Owns the models."""

    def __init__(self, link: Link, init: TrainingInit, ranks: Ranks = ALONE) -> None:
        self._link = link
        self.models = {model.name: HeldModel(link, model, ranks) for model in init.models}

    def ready(self) -> TrainingReady:
        return TrainingReady(models=tuple(model.ready() for model in self.models.values()))

    def handle(self, message: object) -> None:
        name = getattr(message, "model", None)
        if (model := self.models.get(name or "")) is None:
            names = ", ".join(self.models)
            self._link.send(Refused(reason=f"there is no model {name!r} here; there is {names}"))
            return
        match message:
            case Accumulate():
                model.accumulate(message)
            case DropStep(version=version):
                model.drop_step(version)
            case FinishStep():
                model.finish_step(message)
            case Forward():
                model.forward(message)
            case Publish(version=version):
                model.publishing.begin(version)
            case Save():
                model.save(message)
            case Load(directory=directory):
                model.load(directory)
            case _:
                raise TypeError(f"unknown message {message!r}")


def serve(link: Link, init: TrainingInit) -> None:
    worker = TrainingWorker(link, init, meet(link, init))
    link.send(worker.ready())
    while True:
        worker.handle(link.receive(None))
