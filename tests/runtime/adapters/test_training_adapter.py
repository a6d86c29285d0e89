"""The adapter of the training worker: what it sends, what it makes of the answers, and a worker that dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.runtime.adapters.training_adapter import TrainingAdapter
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerSpec
from tailrace.runtime.record.taken_steps import TakenStep
from tailrace.weights.address import SHARED_MEMORY, ChannelAddress
from tailrace.weights.slots.channel_files import MEMORY_DIRECTORY
from tailrace.workers.messages import (
    Accumulate,
    Accumulated,
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
from tailrace.workers.sample_transfer import SentSamples

RATES = (("actor", 0.25),)


@dataclass
class Worker:
    """A worker that does nothing by itself: the test says what it says."""

    spec: WorkerSpec
    hear: Hear
    lose: Lose
    sent: list[Any] = field(default_factory=list)
    is_alive: bool = True

    def send(self, message: object) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.is_alive = False
        self.lose(f"worker {self.spec.name!r} was killed by SIGKILL")

    async def stop(self, grace_s: float) -> None:
        self.is_alive = False

    def take(self) -> list[tuple[type, int]]:
        taken, self.sent = self.sent, []
        return [(type(message), message.version) for message in taken]


class Stage:
    def __init__(self, channel: ChannelAddress) -> None:
        self.channel, self.workers, self.events = channel, [], []
        self.num_starts = 0
        self.saved: list[int] = []
        self.jobs: list[Callable[[], None]] = []
        self.said: list[str] = []
        self.is_busy = False
        """Whether work waits in ``jobs``."""

        self.training = TrainingAdapter(
            launch=self,
            batch=lambda command: SentSamples(samples=()),
            post=self.events.append,
            on_saved=lambda version, seconds: self.saved.append(version),
            work=lambda job: self.jobs.append(job) if self.is_busy else job(),
            say=self.said.append,
        )

    shares_files = True
    workers: list[Worker]
    events: list[ev.TrainerEvent]

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> Worker:
        self.workers.append(Worker(spec, hear, lose))
        return self.workers[-1]

    def start(self, version: int, *to_redo: int) -> Worker:
        self.num_starts += 1
        steps = [TakenStep(batches=(batch(number),), rates=RATES) for number in to_redo]
        self.training.start(TrainingInit(models=()), steps, incarnation=self.num_starts)
        ready = ModelReady(name="policy", version=Version(version), channel=self.channel)
        self.workers[-1].hear(TrainingReady(models=(ready,)))
        return self.workers[-1]

    def take(self) -> list[ev.TrainerEvent]:
        """Return what it has told since, without the number of the start."""
        taken, self.events[:] = list(self.events), []
        assert all(event.incarnation for event in taken)
        return [replace(event, incarnation=None) for event in taken]


def in_memory(path: Path) -> ChannelAddress:
    return ChannelAddress(kind=SHARED_MEMORY, location=str(path))


def batch(version: int) -> do.Accumulate:
    response = ResponseId(GroupId("train", 0, version), 0)
    return do.Accumulate(version=Version(version), responses=(response,), scores=(1.0,))


def accumulated(version: int) -> Accumulated:
    return Accumulated(model="policy", version=Version(version), num_responses=1, seconds=0.5)


def finished(version: int) -> StepFinished:
    return StepFinished(model="policy", version=Version(version), seconds=1.0, metrics=())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(in_memory(tmp_path / "channel"))


@pytest.mark.skipif(not MEMORY_DIRECTORY.is_dir(), reason="needs a memory file system")
def test_the_user_is_told_that_weights_are_published_on_disk(tmp_path: Path) -> None:
    on_disk, in_its_place = Stage(in_memory(tmp_path / "channel")), Stage(in_memory(MEMORY_DIRECTORY / "channel"))
    for stage in (on_disk, in_its_place):
        stage.start(0)
    [line] = on_disk.said
    assert line.startswith(f"weights are published on disk, in {tmp_path / 'channel'}")
    assert in_its_place.said == []


def test_each_verb_is_sent_and_its_answer_is_told(stage: Stage) -> None:
    worker = stage.start(0)
    assert stage.take() == [ev.TrainerReached(version=Version(0))]
    for command in (batch(0), do.FinishStep(version=Version(0)), do.PublishWeights(version=Version(1))):
        stage.training.perform(command)
    stage.training.save(Version(1), Path("somewhere"))
    assert worker.take() == [(Accumulate, 0), (FinishStep, 0), (Publish, 1), (Save, 1)]
    worker.hear(accumulated(0))
    worker.hear(finished(1))
    worker.hear(Published(model="policy", version=Version(1), seconds=0.1))
    worker.hear(Saved(model="policy", version=Version(1), seconds=0.2))
    assert stage.take() == [
        ev.GradientsAccumulated(version=Version(0), num_responses=1, seconds=0.5),
        ev.StepTrained(version=Version(1), seconds=1.0, metrics=()),
        ev.WeightsPublished(version=Version(1), seconds=0.1),
    ]
    assert stage.saved == [1]


def test_steps_are_taken_again_one_by_one_and_only_their_versions_are_told(stage: Stage) -> None:
    worker = stage.start(2, 2, 3)
    assert worker.sent[-1].rates == RATES, "a step is repeated with the learning rate it was taken with"
    assert worker.take() == [(Accumulate, 2), (FinishStep, 2)]
    worker.hear(accumulated(2))
    worker.hear(finished(3))
    assert worker.take() == [(Accumulate, 3), (FinishStep, 3)]
    worker.hear(accumulated(3))
    worker.hear(finished(4))
    assert worker.take() == []
    assert stage.take() == [ev.TrainerReached(version=Version(number)) for number in (2, 3, 4)]
    stage.training.perform(batch(4))
    worker.hear(accumulated(4))
    assert stage.take() == [ev.GradientsAccumulated(version=Version(4), num_responses=1, seconds=0.5)]


def test_a_worker_that_dies_while_catching_up_is_lost_and_another_begins_anew(stage: Stage) -> None:
    first = stage.start(0, 0, 1)
    first.hear(accumulated(0))
    first.lose("worker 'training' was killed by SIGKILL")
    stage.training.perform(do.PublishWeights(version=Version(2)))  # the core has not heard of it yet
    assert stage.take() == [
        ev.TrainerReached(version=Version(0)),
        ev.TrainerLost(reason="worker 'training' was killed by SIGKILL"),
    ]
    second = stage.start(0, 0, 1)
    assert second.take() == [(Accumulate, 0), (FinishStep, 0)]
    second.hear(accumulated(0))
    second.hear(finished(1))
    assert second.take() == [(Accumulate, 1), (FinishStep, 1)]


def test_the_channel_of_a_lost_worker_stays_until_there_is_another(stage: Stage, tmp_path: Path) -> None:
    """The news of a publish may be handled after the death: an instance is then sent to pull from that channel."""
    Path(stage.channel.location).touch()
    worker = stage.start(0)
    worker.hear(Published(model="policy", version=Version(1), seconds=0.1))
    worker.lose("it was killed")
    assert stage.training.channel == stage.channel
    assert Path(stage.channel.location).exists()
    old, stage.channel = stage.channel, in_memory(tmp_path / "another")
    stage.start(1)
    assert stage.training.channel == stage.channel
    assert not Path(old.location).exists()


def test_a_refusal_and_a_failed_save_end_as_such(stage: Stage) -> None:
    worker = stage.start(0)
    stage.take()
    worker.hear(Refused(reason="the gradient is not finite"))
    worker.hear(SaveFailed(model="policy", version=Version(1), reason="the disk is full"))
    assert stage.take() == [
        ev.TrainingFailed(reason="the gradient is not finite"),
        ev.CheckpointFailed(version=Version(1), reason="the disk is full"),
    ]


def test_a_step_is_not_repeated_by_a_worker_that_took_the_place_of_the_one_it_was_meant_for(stage: Stage) -> None:
    stage.is_busy = True
    first = stage.start(2, 2)
    first.lose("killed")
    second = stage.start(3)
    for job in stage.jobs:
        job()
    assert (first.take(), second.take()) == ([], [])


def test_a_trainer_that_is_killed_for_a_reason_is_lost_for_that_reason(stage: Stage) -> None:
    stage.start(0)
    stage.training.kill("waited 25 s for optimizer step 3 (limit 25 s)")
    assert stage.take()[-1] == ev.TrainerLost(reason="waited 25 s for optimizer step 3 (limit 25 s)")
    stage.start(0)
    stage.workers[-1].lose("it was killed")
    assert stage.take()[-1] == ev.TrainerLost(reason="it was killed")


def test_every_event_carries_the_number_of_the_start_that_it_tells_of(stage: Stage) -> None:
    stage.start(0).lose("it was killed")
    stage.start(0)
    assert [event.incarnation for event in stage.events] == [1, 1, 2]


def test_a_start_that_is_ended_before_it_begins_counts_as_lost(stage: Stage) -> None:
    """It waits behind other work, so there is no worker yet that could be ended."""
    stage.training.announce(1)
    assert stage.training.is_announced(1)
    stage.training.kill("waited 40 s for start of the trainer (limit 40 s)")
    assert stage.events == [ev.TrainerLost(reason="waited 40 s for start of the trainer (limit 40 s)", incarnation=1)]
    assert not stage.training.is_announced(1)
    stage.training.announce(2)
    assert not stage.training.is_announced(1), "the start that was ended comes no more"
    assert stage.training.is_announced(2)


def test_a_start_that_is_announced_outlives_the_end_of_all_workers(stage: Stage) -> None:
    """All workers of a GPU are ended without a reason before new ones start: one that has not started may start."""
    stage.training.announce(1)
    stage.training.kill()
    assert stage.training.is_announced(1)
    assert stage.events == []


def test_a_trainer_that_has_started_is_ended_and_told_once(stage: Stage) -> None:
    stage.training.announce(1)
    worker = stage.start(0)
    assert not stage.training.is_announced(1)
    stage.take()
    stage.training.kill("it does not answer")
    assert not worker.is_alive
    assert stage.take() == [ev.TrainerLost(reason="it does not answer")]
