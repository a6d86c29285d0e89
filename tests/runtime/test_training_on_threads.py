"""The training adapter with a real training worker, on a thread: a worker that is killed leaves no trace in weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from contract.thread_worker import ThreadLauncher
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.data.models import resolve_model
from tailrace.runtime.adapters.training_adapter import TrainingAdapter
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.record.taken_steps import TakenStep
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.workers.messages import ModelInit, TrainingInit
from tailrace.workers.sample_transfer import SentSamples


class Launcher(ThreadLauncher):
    """Remembers the worker, so that a test can kill it."""

    worker: WorkerHandle

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        self.worker = super().__call__(spec, hear=hear, lose=lose)
        return self.worker


def init(checkpoint: Path | None, name: str) -> TrainingInit:
    path = resolve_model("tiny-arith")
    policy = ModelInit(
        name="policy",
        model_path=path,
        checkpoint=checkpoint,
        model=ModelSettings(path=str(path), device="cpu"),
        trainer=TrainerSettings(learning_rate=1e-3, threads=1),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_response_length=8,
        max_steps=10,
        seed=0,
        channel_name=f"test-{name}",
    )
    return TrainingInit(models=(policy,))


def batch(version: int) -> do.Accumulate:
    responses = tuple(ResponseId(GroupId("train", 0, version), member) for member in range(3))
    return do.Accumulate(version=Version(version), responses=responses, scores=(0.0, 1.0, 0.5))


def samples(command: do.Accumulate) -> SentSamples:
    return SentSamples(
        samples=tuple(
            Sample(response_id=t, prompt=np.array([7, 8], np.int32), response=response(t, command.version), score=score)
            for t, score in zip(command.responses, command.scores, strict=True)
        )
    )


def response(response: ResponseId, version: Version) -> ResponsePayload:
    tokens = np.array([3, 4 + version, 5, 6 + response.member], np.int32)
    logprobs = np.full(4, -3.0, np.float32)
    return ResponsePayload(
        response_id=response,
        tokens=tokens,
        logprobs=logprobs,
        behaviour_logprobs=logprobs,
        mask=np.ones(4, np.uint8),
        versions=((version, 4),),
    )


async def take_steps(folder: Path, num_steps: int, *, kill_in: int | None) -> bytes:
    """A checkpoint after the first step; the final weights. ``kill_in``: the step in which the worker is killed."""
    launcher, inbox = Launcher(), asyncio.Queue[ev.Event]()
    training = TrainingAdapter(
        launch=launcher,
        batch=samples,
        post=inbox.put_nowait,
        on_saved=lambda version, seconds: inbox.put_nowait(ev.CheckpointSaved(version=version, seconds=seconds)),
    )

    async def until(kind: type[ev.Event]) -> None:
        async with asyncio.timeout(60):
            while not isinstance(event := await inbox.get(), kind):
                assert not isinstance(event, ev.TrainingFailed), event

    training.start(init(None, folder.name), [])
    await until(ev.TrainerReached)
    for version in range(num_steps):
        training.perform(batch(version))
        if version == kill_in:
            launcher.worker.kill()
            await until(ev.TrainerLost)
            to_redo = [TakenStep(batches=(batch(number),)) for number in range(1, version)]
            training.start(init(folder / "step_1", folder.name), to_redo)
            for _ in range(version):
                await until(ev.TrainerReached)
            training.perform(batch(version))
        training.perform(do.FinishStep(version=Version(version)))
        await until(ev.StepTrained)
        if version in (0, num_steps - 1):
            training.save(Version(version + 1), folder / f"step_{version + 1}")
            await until(ev.CheckpointSaved)
    await training.stop()
    return (folder / f"step_{num_steps}" / "model.safetensors").read_bytes()


def test_a_training_worker_that_is_killed_in_a_step_leaves_no_trace_in_the_weights(tmp_path: Path) -> None:
    folders = [tmp_path / f"{tmp_path.name}-{number}" for number in range(2)]
    undisturbed = asyncio.run(take_steps(folders[0], 4, kill_in=None))
    assert asyncio.run(take_steps(folders[1], 4, kill_in=3)) == undisturbed
