"""A real trainer, a real channel, and a reader that holds a push up for as long as the test likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.settings import ModelSettings, TrainerSettings
from tailrace.core.ids import GroupId, TrajectoryId, Version
from tailrace.data.models import resolve_model
from tailrace.store.segment import Response
from tailrace.trainer.batch import Sample
from tailrace.weights.mapped_file import MappedFile
from tailrace.weights.shared_memory import WeightReader
from tailrace.workers.messages import Publish, Published, Refused, Save, Saved, Train, Trained, TrainingInit
from tailrace.workers.training import TrainingWorker


class Heard:
    """The controller's end of the link: what the worker said, in order."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def send(self, message: object) -> None:
        self.messages.append(message)

    def wait_for(self, kind: type, version: int) -> None:
        while not any(isinstance(m, kind) and getattr(m, "version", None) == version for m in self.messages):
            assert not any(isinstance(m, Refused) for m in self.messages), self.messages
            time.sleep(0.001)

    def order(self) -> list[tuple[type, int]]:
        return [(type(m), m.version) for m in self.messages]  # type: ignore[attr-defined]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def worker(heard: Heard, tmp_path: Path) -> Iterator[TrainingWorker]:
    path = resolve_model("tiny-arith")
    worker = TrainingWorker(
        heard,  # type: ignore[arg-type]
        TrainingInit(
            model_path=path,
            checkpoint=None,
            model=ModelSettings(path=str(path), device="cpu"),
            trainer=TrainerSettings(learning_rate=1e-2, threads=1),
            algorithm=AlgorithmSettings(),
            temperature=1.0,
            max_response_length=8,
            max_steps=10,
            seed=0,
            channel_name=f"test-{tmp_path.name}",
        ),
    )
    yield worker
    worker.channel.unlink()


def sample(member: int, version: int) -> Sample:
    trajectory = TrajectoryId(GroupId("train", 0, 0), member)
    tokens = np.array([3, 4, 5, 6 + member], np.int32)
    logprobs = np.full(4, -3.0, np.float32)
    response = Response(
        trajectory=trajectory,
        tokens=tokens,
        logprobs=logprobs,
        full_logprobs=logprobs,
        mask=np.ones(4, np.uint8),
        versions=((Version(version), 4),),
    )
    return Sample(trajectory=trajectory, prompt=np.array([7, 8], np.int32), response=response, score=float(member))


def step(version: int) -> Train:
    return Train(version=Version(version), samples=(sample(0, version), sample(1, version)))


def weights(worker: TrainingWorker) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in worker._trainer.named_weights()}


def has_gradients(worker: TrainingWorker) -> bool:
    return any(parameter.grad is not None for parameter in worker._trainer.model.parameters())


def test_a_version_is_pushed_while_the_next_step_adds_up_and_before_it_changes_the_weights(
    worker: TrainingWorker, heard: Heard, tmp_path: Path
) -> None:
    for version in range(2):
        worker.handle(Publish(version=Version(version)))
        worker.handle(step(version))
    before = weights(worker)
    held = MappedFile(worker.channel, writable=False)
    assert held.share(1), "the slot that version 2 goes to"
    worker.handle(Publish(version=Version(2)))
    worker.handle(Save(version=Version(2), directory=tmp_path))
    training = threading.Thread(target=worker.handle, args=(step(2),))
    training.start()
    while not has_gradients(worker):
        time.sleep(0.001)
    training.join(0.05)
    assert training.is_alive(), "the optimizer step did not wait for the push"
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(worker).items())
    held.leave(1)
    training.join()
    assert heard.order()[-3:] == [(Saved, 2), (Published, 2), (Trained, 3)]
    version, pulled = WeightReader.open(worker.channel).pull(Version(2))
    assert version == 2
    assert all(torch.equal(before[name], tensor) for name, tensor in pulled.items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(worker).items())


def test_a_push_that_fails_is_told_also_while_nothing_else_is_asked_for(worker: TrainingWorker, heard: Heard) -> None:
    worker.handle(Publish(version=Version(1)))
    heard.wait_for(Published, 1)
    worker.handle(Publish(version=Version(0)))
    while len(heard.messages) < 2:
        time.sleep(0.001)
    assert heard.messages[1] == Refused(
        reason="version 0 could not be published: version 0 comes after version 1; versions only grow"
    )
