"""Several workers behind one handle."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from contract.rank_workers import Ask
from contract.thread_worker import ThreadLauncher
from contract.worker_story import Story, moments
from tailrace.core.ids import Version
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.launchers.worker_group import WorkerGroup
from tailrace.workers.messages import (
    Accumulated,
    FinishStep,
    Forward,
    LogprobsComputed,
    Published,
    Refused,
    Saved,
    SaveFailed,
    StepFinished,
)
from tailrace.workers.sample_transfer import SentSamples


class Mouthpieces:
    """Starts nothing: the test says what each worker answers."""

    shares_files = True

    def __init__(self) -> None:
        self.say: list[Hear] = []

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        self.say.append(hear)
        return None  # type: ignore[return-value]


FINISH = FinishStep(model="m", version=Version(4))


def play(scenario: Callable[[WorkerGroup, Story], Awaitable[None]], size: int = 3) -> Story:
    async def run() -> Story:
        story = Story()
        specs = [WorkerSpec(name=f"rank-{n}", entry="contract.rank_workers:answer", init=n) for n in range(size)]
        group = WorkerGroup.start(specs, ThreadLauncher(), hear=story.hear, lose=story.lose)
        await scenario(group, story)
        await group.stop(grace_s=20.0)
        return story

    return asyncio.run(run())


def test_answers_of_all_ranks_become_one_with_each_response_once_that_took_as_long_as_the_slowest() -> None:
    async def scenario(group: WorkerGroup, story: Story) -> None:
        group.send(FINISH)
        group.send(Forward(model="m", batch=SentSamples(samples=())))
        await story.message(1)
        assert group.is_alive

    assert play(scenario).messages == [
        StepFinished(model="m", version=Version(4), seconds=3.0, metrics=(("loss", 0.5),)),
        LogprobsComputed(model="m", version=Version(0), logprobs=((0, [-1.0]), (1, [-2.0]), (2, [-3.0]))),  # type: ignore[arg-type]
    ]


def test_ranks_may_answer_in_different_orders() -> None:
    async def scenario(group: WorkerGroup, story: Story) -> None:
        group.send(Ask("cross"))
        await story.message(1)

    assert {type(message) for message in play(scenario).messages} == {Accumulated, Published}


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_ends_ends_the_group_once_with_its_own_reason(rank: int) -> None:
    async def scenario(group: WorkerGroup, story: Story) -> None:
        group.send(FINISH)
        await story.message(0)
        group.send(Ask("fail", rank))
        reason = await story.ending()
        assert f"'rank-{rank}'" in reason
        assert "out of paper" in reason
        assert not group.is_alive
        await moments()

    assert len(play(scenario).endings) == 1


def test_a_refusal_of_one_rank_is_passed_on_though_the_others_wait() -> None:
    async def scenario(group: WorkerGroup, story: Story) -> None:
        group.send(Ask("refuse", 1))
        group.send(Ask("refuse", 2))
        assert await story.message(0) in [Refused(reason=f"rank {rank} cannot") for rank in (1, 2)]
        await moments()

    assert len(play(scenario).messages) == 1


@pytest.mark.parametrize("rank", [0, 2])
def test_a_checkpoint_that_fails_on_one_rank_is_passed_on_though_the_others_wait(rank: int) -> None:
    async def scenario(group: WorkerGroup, story: Story) -> None:
        group.send(Ask("fail to save", rank))
        await story.message(0)

    failed = SaveFailed(model="m", version=Version(4), reason=f"the disk of rank {rank} is full")
    assert play(scenario).messages == [failed]


def test_a_checkpoint_that_fails_fails_once_whatever_the_other_ranks_answer() -> None:
    failed = SaveFailed(model="m", version=Version(4), reason="the disk is full")
    saved = Saved(model="m", version=Version(4), seconds=1.0)
    specs = [WorkerSpec(name=f"rank-{n}", entry="", init=n) for n in range(3)]
    for answers in itertools.product([failed, saved], repeat=3):
        heard: list[object] = []
        launch = Mouthpieces()
        WorkerGroup.start(specs, launch, hear=heard.append, lose=heard.append)
        for rank, answer in enumerate(answers):
            launch.say[rank](answer)
        assert heard == [failed if failed in answers else saved]
        for say in launch.say:  # nothing is left over for the next checkpoint
            say(saved)
        assert heard[1:] == [saved]


def test_answers_of_a_rank_that_is_ahead_are_joined_with_those_that_the_others_give_later() -> None:
    """A step of two batches: each rank answers twice, with the same kind of message about the same version."""

    def answer(batch: int, seconds: float) -> Accumulated:
        return Accumulated(model="m", version=Version(4), num_responses=batch, seconds=seconds)

    specs = [WorkerSpec(name=f"rank-{n}", entry="", init=n) for n in range(3)]
    for order in sorted(set(itertools.permutations([0, 0, 1, 1, 2, 2]))):
        heard: list[object] = []
        launch = Mouthpieces()
        WorkerGroup.start(specs, launch, hear=heard.append, lose=heard.append)
        batches = [iter((1, 2)) for _ in specs]
        for rank in order:
            batch = next(batches[rank])
            launch.say[rank](answer(batch, seconds=10.0 * batch + rank))
        assert heard == [answer(1, seconds=12.0), answer(2, seconds=22.0)], order


def test_a_checkpoint_that_failed_does_not_hide_the_next_one_of_the_same_version() -> None:
    failed = SaveFailed(model="m", version=Version(4), reason="the disk is full")
    saved = Saved(model="m", version=Version(4), seconds=1.0)
    heard: list[object] = []
    launch = Mouthpieces()
    WorkerGroup.start(
        [WorkerSpec(name=f"rank-{n}", entry="", init=n) for n in range(2)], launch, hear=heard.append, lose=heard.append
    )
    for rank, answers in enumerate([(failed, saved), (failed, saved)]):  # the first rank is ahead
        for each in answers:
            launch.say[rank](each)
    assert heard == [failed, saved]


def test_a_group_that_is_killed_is_lost_and_one_that_is_stopped_is_not() -> None:
    async def killed(group: WorkerGroup, story: Story) -> None:
        group.send(FINISH)
        await story.message(0)
        group.kill()
        await story.ending()

    async def stopped(group: WorkerGroup, story: Story) -> None:
        group.send(FINISH)
        await story.message(0)

    assert len(play(killed).endings) == 1
    assert play(stopped).endings == []
