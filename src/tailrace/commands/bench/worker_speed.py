"""Measures a training step, a publish and a pull, with the worker processes and the weight channel of a real run."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT, WorkerSpec
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.weights.slots.channel_files import remove_channel
from tailrace.workers.messages import (
    POLICY,
    Accumulate,
    FinishStep,
    Publish,
    Published,
    Pull,
    Pulled,
    Refused,
    RolloutInit,
    RolloutReady,
    StepFinished,
    TrainingInit,
    TrainingReady,
)
from tailrace.workers.sample_transfer import SentSamples

Answer = TypeVar("Answer")
_START_S = 600.0
_ANSWER_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBatch:
    """Sizes of a synthetic batch: groups of responses that share a prompt."""

    num_groups: int
    group_size: int
    prompt_length: int
    response_length: int

    @property
    def num_tokens(self) -> int:
        """Tokens that training computes: a prompt counts once for its group."""
        return self.num_groups * (self.prompt_length + self.group_size * self.response_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """The shortest of several, in seconds."""

    step_s: float
    publish_s: float
    pull_s: float
    max_memory_gb: float | None
    """Most GiB that tensors of the training process used on a GPU."""


def measure_workers(
    training: TrainingInit, rollout: RolloutInit, batch: MeasuredBatch, *, vocab_size: int, rounds: int, logs: Path
) -> WorkerTimes:
    """Train, publish and pull ``rounds`` times, after one round that does not count.

    ``ValueError`` with the reason if a worker cannot do it, such as too little memory.
    """
    return asyncio.run(_measure(training, rollout, batch, vocab_size=vocab_size, rounds=rounds, logs=logs))


async def _measure(
    training: TrainingInit, rollout: RolloutInit, batch: MeasuredBatch, *, vocab_size: int, rounds: int, logs: Path
) -> WorkerTimes:
    launcher = ProcessLauncher(logs)
    trainer = _Worker(launcher, "training", "tailrace.workers.training_worker:serve", training)
    engine = _Worker(launcher, "rollout", "tailrace.workers.rollout_worker:serve", rollout)
    channel = None
    try:
        channel = (await trainer.hear(TrainingReady, _START_S)).models[0].channel
        assert channel is not None
        await engine.hear(RolloutReady, _START_S)
        found = []
        for number in range(rounds + 1):
            version = Version(number)
            samples = synthetic_samples(batch, version, vocab_size=vocab_size)
            trainer.send(Accumulate(model=POLICY, version=version, batch=SentSamples(samples=tuple(samples))))
            trainer.send(FinishStep(model=POLICY, version=version))
            step = await trainer.hear(StepFinished)
            trainer.send(Publish(model=POLICY, version=step.version))
            published = await trainer.hear(Published)
            engine.send(Pull(version=step.version, channel=channel))
            found.append((step, published, await engine.hear(Pulled)))
        return _times(found[1:])
    finally:
        await asyncio.gather(trainer.stop(), engine.stop())
        if channel is not None:
            remove_channel(channel)


def _times(rounds: Sequence[tuple[StepFinished, Published, Pulled]]) -> WorkerTimes:
    memory = [dict(step.metrics).get("perf/max_memory_allocated_gb") for step, _, _ in rounds]
    return WorkerTimes(
        step_s=min(step.seconds for step, _, _ in rounds),
        publish_s=min(published.seconds for _, published, _ in rounds),
        pull_s=min(pulled.seconds for _, _, pulled in rounds),
        max_memory_gb=max((gib for gib in memory if gib is not None), default=None),
    )


def synthetic_samples(batch: MeasuredBatch, version: Version, *, vocab_size: int) -> list[Sample]:
    """Random tokens. Half of each group scores 1, so every response has a gradient."""
    random, samples = np.random.default_rng(version), []
    for group in range(batch.num_groups):
        prompt = random.integers(0, vocab_size, batch.prompt_length).astype(np.int32)
        for member in range(batch.group_size):
            response_id = ResponseId(GroupId("bench", version, group), member)
            logprobs = np.full(batch.response_length, -math.log(vocab_size), np.float32)
            response = ResponsePayload(
                response_id=response_id,
                tokens=random.integers(0, vocab_size, batch.response_length).astype(np.int32),
                logprobs=logprobs,
                behaviour_logprobs=logprobs,
                mask=np.ones(batch.response_length, np.uint8),
                versions=((version, batch.response_length),),
            )
            samples.append(Sample(response_id=response_id, prompt=prompt, response=response, score=float(member % 2)))
    return samples


class _Worker:
    """One worker process, asked one thing after the other."""

    def __init__(self, launcher: ProcessLauncher, name: str, entry: str, init: Any) -> None:
        self._heard: asyncio.Queue[object] = asyncio.Queue()
        spec = WorkerSpec(name=name, entry=entry, init=init, env=OPENMP_PASSIVE_WAIT)
        self._handle = launcher(spec, hear=self._heard.put_nowait, lose=self._lose)

    def _lose(self, reason: str) -> None:
        self._heard.put_nowait(Refused(reason=reason))

    def send(self, message: object) -> None:
        self._handle.send(message)

    async def hear(self, kind: type[Answer], timeout_s: float = _ANSWER_S) -> Answer:
        """The next message of this kind."""
        while True:
            message = await asyncio.wait_for(self._heard.get(), timeout_s)
            if isinstance(message, kind):
                return message
            if isinstance(message, Refused):
                raise ValueError(message.reason)

    async def stop(self) -> None:
        await self._handle.stop(grace_s=5.0)
