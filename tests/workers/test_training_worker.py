"""A real trainer, a real channel, and a reader that holds a push up for as long as the test likes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.data.models import resolve_model
from tailrace.store.address import address_of
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import ResponsePayload, Segment
from tailrace.trainer.batch import Sample
from tailrace.weights.slots.channel_files import directories, remove_channel
from tailrace.weights.slots.leftovers import FIRST_LOCKED_FORMAT, MAGIC, MARK
from tailrace.weights.slots.mapped_file import MappedFile
from tailrace.weights.slots.shared_memory import open_reader
from tailrace.workers.messages import (
    Accumulate,
    Accumulated,
    FinishStep,
    Forward,
    Load,
    Loaded,
    LogprobsComputed,
    ModelInit,
    Publish,
    Published,
    Refused,
    Save,
    Saved,
    StepFinished,
    TrainingInit,
)
from tailrace.workers.sample_transfer import SentSamples, StoredSample, StoredSamples
from tailrace.workers.training_worker import TrainingWorker


class Heard:
    """The controller's end of the link: what the worker said, in order."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def receive(self, timeout: float | None = None) -> object | None:
        raise AssertionError("the test hands messages over itself")

    def send(self, message: object) -> None:
        self.messages.append(message)

    def wait_for(self, kind: type, version: int) -> None:
        while not any(isinstance(m, kind) and getattr(m, "version", None) == version for m in self.messages):
            assert not any(isinstance(m, Refused) for m in self.messages), self.messages
            time.sleep(0.001)

    def order(self) -> list[tuple[type, int]]:
        return [(type(m), m.version) for m in self.messages]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def model_init(name: str, channel_name: str, **changes: Any) -> ModelInit:
    path = resolve_model("tiny-arith")
    init = ModelInit(
        name=name,
        model_path=path,
        checkpoint=None,
        model=ModelSettings(path=str(path), device="cpu"),
        trainer=TrainerSettings(learning_rate=1e-2, threads=1),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_response_length=8,
        max_steps=10,
        seed=0,
        channel_name=channel_name,
    )
    return replace(init, **changes)


@pytest.fixture
def worker(heard: Heard, tmp_path: Path) -> Iterator[TrainingWorker]:
    worker = TrainingWorker(heard, TrainingInit(models=(model_init("policy", f"test-{tmp_path.name}"),)))
    yield worker
    remove_channel(worker.models["policy"].channel)


def test_a_trainer_that_starts_removes_what_killed_processes_left(heard: Heard, tmp_path: Path) -> None:
    left = directories()[0] / f"tailrace-left-{tmp_path.name}-{os.getpid()}.weights"
    left.write_bytes(MARK.pack(MAGIC, FIRST_LOCKED_FORMAT) + bytes(100))
    init = TrainingInit(models=(model_init("policy", f"test-{tmp_path.name}"),))
    remove_channel(TrainingWorker(heard, init).models["policy"].channel)
    assert not left.exists()


def sample(member: int, version: int) -> Sample:
    response_id = ResponseId(GroupId("train", 0, 0), member)
    tokens = np.array([3, 4, 5, 6 + member], np.int32)
    logprobs = np.full(4, -3.0, np.float32)
    response = ResponsePayload(
        response_id=response_id,
        tokens=tokens,
        logprobs=logprobs,
        behaviour_logprobs=logprobs,
        mask=np.ones(4, np.uint8),
        versions=((Version(version), 4),),
    )
    return Sample(response_id=response_id, prompt=np.array([7, 8], np.int32), response=response, score=float(member))


def samples_of(version: int) -> tuple[Sample, ...]:
    return sample(0, version), sample(1, version)


def accumulate(version: int, model: str = "policy", **changes: Any) -> Accumulate:
    samples = samples_of(version)
    return replace(Accumulate(model=model, version=Version(version), batch=SentSamples(samples=samples)), **changes)


def finish(version: int, model: str = "policy") -> FinishStep:
    return FinishStep(model=model, version=Version(version))


def publish(version: int) -> Publish:
    return Publish(model="policy", version=Version(version))


def take_step(worker: TrainingWorker, version: int, model: str = "policy") -> None:
    worker.handle(accumulate(version, model))
    worker.handle(finish(version, model))


def weights(worker: TrainingWorker, model: str = "policy") -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in worker.models[model]._trainer.named_weights()}


def has_gradients(worker: TrainingWorker) -> bool:
    return any(parameter.grad is not None for parameter in worker.models["policy"]._trainer.model.parameters())


def test_a_version_is_pushed_while_the_next_step_adds_up_and_before_it_changes_the_weights(
    worker: TrainingWorker, heard: Heard, tmp_path: Path
) -> None:
    for version in range(2):
        worker.handle(publish(version))
        take_step(worker, version)
    before = weights(worker)
    held = MappedFile(Path(worker.models["policy"].channel.location), writable=False)
    held.begin_read(1)  # in the slot that version 2 goes to
    worker.handle(publish(2))
    worker.handle(Save(model="policy", version=Version(2), directory=tmp_path))
    training = threading.Thread(target=take_step, args=(worker, 2))
    training.start()
    heard.wait_for(Accumulated, 2)
    training.join(0.05)
    assert training.is_alive(), "the optimizer step did not wait for the push"
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(worker).items())
    held.end_read(1)
    training.join()
    assert heard.order()[-4:] == [(Saved, 2), (Accumulated, 2), (Published, 2), (StepFinished, 3)]
    version, pulled = open_reader(Path(worker.models["policy"].channel.location)).fetch_whole(Version(2))
    assert version == 2
    assert all(torch.equal(before[name], tensor) for name, tensor in pulled.items())
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(worker).items())


def test_a_push_that_fails_is_told_also_while_nothing_else_is_asked_for(worker: TrainingWorker, heard: Heard) -> None:
    worker.handle(publish(1))
    heard.wait_for(Published, 1)
    worker.handle(publish(0))
    while len(heard.messages) < 2:
        time.sleep(0.001)
    assert heard.messages[1] == Refused(
        reason="version 0 could not be published: cannot publish version 0 after version 1: versions only grow"
    )


def test_two_models_have_steps_versions_and_channels_of_their_own(heard: Heard, tmp_path: Path) -> None:
    names = ("teacher", "student")
    inits = tuple(model_init(name, f"test-{tmp_path.name}-{name}") for name in names)
    worker = TrainingWorker(heard, TrainingInit(models=inits))
    try:
        before = weights(worker, "teacher")
        worker.handle(accumulate(0, "teacher"))
        take_step(worker, 0, "student")
        take_step(worker, 1, "student")
        assert [(ready.name, ready.version) for ready in worker.ready().models] == [("teacher", 0), ("student", 2)]
        assert all(torch.equal(before[name], tensor) for name, tensor in weights(worker, "teacher").items())
        worker.handle(finish(0, "teacher"))
        assert [(m.model, m.version) for m in heard.messages if isinstance(m, StepFinished)] == [
            ("student", 1),
            ("student", 2),
            ("teacher", 1),
        ]
        assert len({ready.channel for ready in worker.ready().models}) == 2
    finally:
        for model in worker.models.values():
            remove_channel(model.channel)


def test_a_model_that_is_not_there_is_refused_by_name(worker: TrainingWorker, heard: Heard) -> None:
    worker.handle(accumulate(0, "teacher"))
    assert heard.messages == [Refused(reason="there is no model 'teacher' here; there is policy")]


def test_a_step_in_pieces_says_how_many_responses_each_brought(worker: TrainingWorker, heard: Heard) -> None:
    others = tuple(
        replace(s, response_id=_moved(s), response=replace(s.response, response_id=_moved(s))) for s in samples_of(0)
    )
    worker.handle(accumulate(0))
    worker.handle(accumulate(0, batch=SentSamples(samples=others)))
    worker.handle(finish(0))
    assert [m.num_responses for m in heard.messages if isinstance(m, Accumulated)] == [2, 2]
    parts = sum(m.seconds for m in heard.messages if isinstance(m, Accumulated))
    assert heard.messages[-1].version == 1
    assert heard.messages[-1].seconds > parts


def _moved(sample: Sample) -> ResponseId:
    """Its place in another group."""
    return sample.response_id._replace(group=GroupId("train", 0, 1))


def test_a_step_whose_gradients_were_refused_is_not_taken(worker: TrainingWorker, heard: Heard) -> None:
    before = weights(worker)
    worker.handle(accumulate(0))
    worker.handle(accumulate(0))
    worker.handle(finish(0))
    reason = "group train:0:0 came twice in one step; a group comes whole"
    assert heard.messages[1:] == [Refused(reason=reason), Refused(reason=reason)]
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(worker).items())
    assert not has_gradients(worker)


def test_a_step_from_another_version_is_refused(worker: TrainingWorker, heard: Heard) -> None:
    worker.handle(accumulate(3))
    worker.handle(finish(3))
    assert heard.messages == 2 * [Refused(reason="asked to train version 3, holds 0")]


def test_settings_of_loss_and_optimizer_come_with_the_verbs(worker: TrainingWorker, heard: Heard) -> None:
    worker.handle(accumulate(0, loss=AlgorithmSettings(advantage_estimator="rloo", loss="sapo")))
    worker.handle(replace(finish(0), optimizer=TrainerSettings(learning_rate=0.5)))
    assert dict(heard.messages[-1].metrics)["actor/lr"] == 0.5


def test_forward_scores_responses_with_the_weights_of_now(worker: TrainingWorker, heard: Heard) -> None:
    samples = samples_of(0)
    for version in range(2):
        worker.handle(Forward(model="policy", batch=SentSamples(samples=samples)))
        take_step(worker, version)
    first, second = (m for m in heard.messages if isinstance(m, LogprobsComputed))
    assert (first.version, second.version) == (0, 1)
    assert [response for response, _ in first.logprobs] == [s.response_id for s in samples]
    assert all(len(logprobs) == 4 and (logprobs < 0).all() for _, logprobs in first.logprobs)
    assert (second.logprobs[1][1] != first.logprobs[1][1]).any()


def test_a_checkpoint_in_the_middle_of_a_step_is_refused(worker: TrainingWorker, heard: Heard, tmp_path: Path) -> None:
    worker.handle(accumulate(0))
    worker.handle(Save(model="policy", version=Version(0), directory=tmp_path / "saved"))
    assert heard.messages[-1].reason == "step 0 has begun; a checkpoint is written between steps"
    worker.handle(finish(0))
    assert heard.messages[-1].version == 1


def test_a_model_goes_on_from_a_checkpoint_that_it_loads(worker: TrainingWorker, heard: Heard, tmp_path: Path) -> None:
    take_step(worker, 0)
    worker.handle(Save(model="policy", version=Version(1), directory=tmp_path / "saved"))
    saved = weights(worker)
    take_step(worker, 1)
    worker.handle(Load(model="policy", directory=tmp_path / "saved"))
    assert heard.messages[-1] == Loaded(model="policy", version=Version(1))
    assert all(torch.equal(saved[name], tensor) for name, tensor in weights(worker).items())
    take_step(worker, 1)
    assert heard.messages[-1].version == 2
    worker.handle(Load(model="policy", directory=tmp_path / "nowhere"))
    assert isinstance(heard.messages[-1], Refused)


def write(store: PayloadStore, given: Sample) -> StoredSample:
    """The sample's response in two segments."""
    response = given.response
    for part in (slice(0, 3), slice(3, None)):
        piece = Segment(
            response_id=given.response_id,
            start=part.start,
            version=response.versions[0][0],
            tokens=response.tokens[part],
            logprobs=response.logprobs[part],
            mask=response.mask[part],
        )
        store.append([piece])
    address = address_of(store, given.response_id)
    return StoredSample(response=address, prompt=given.prompt, score=given.score, is_truncated=False)


def test_samples_by_address_train_like_samples_that_were_sent(
    worker: TrainingWorker, heard: Heard, tmp_path: Path
) -> None:
    worker.handle(accumulate(0))
    sent = gradients(worker)
    worker.models["policy"]._trainer.drop_step()
    with PayloadStore.open(tmp_path / "payload") as store:
        stored = StoredSamples(
            directory=tmp_path / "payload", samples=tuple(write(store, given) for given in samples_of(0))
        )
        worker.handle(accumulate(0, batch=stored))
    assert [message.num_responses for message in heard.messages] == [2, 2]
    assert all(torch.equal(*pair) for pair in zip(sent, gradients(worker), strict=True))


def gradients(worker: TrainingWorker) -> list[Tensor]:
    parameters = worker.models["policy"]._trainer.model.parameters()
    return [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]


def test_a_payload_file_that_is_gone_is_a_refusal(worker: TrainingWorker, heard: Heard, tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path / "payload") as store:
        stored = tuple(write(store, given) for given in samples_of(0))
    worker.handle(accumulate(0, batch=StoredSamples(directory=tmp_path / "elsewhere", samples=stored)))
    assert "No such file or directory" in heard.messages[-1].reason
