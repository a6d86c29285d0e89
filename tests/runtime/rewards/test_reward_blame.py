"""Which response is blamed when a reward process ends between two of them: the pool with processes made of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from runtime.rewards.test_reward_pool import name, task
from tailrace.config.reward_settings import RewardSettings
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.rewards.reward_pool import RewardPool
from tailrace.workers.reward_messages import RewardEnding, RewardReady, ScoreStarted, TaskReturned


class FakeProcess:
    """Does what the test says, and nothing else."""

    is_alive = True

    def __init__(self, name: str, hear: Hear, lose: Lose) -> None:
        self.name, self.hear, self.lose = name, hear, lose

    def send(self, message: object) -> None: ...

    def kill(self) -> None: ...

    async def stop(self, grace_s: float) -> None: ...

    def score(self, number: int) -> None:
        self.hear(ScoreStarted(response_id=name(number), limit_s=10.0))
        self.hear(ScoreResult(response_id=name(number), outcome=Outcome.OK, score=1.0, seconds=0.001))


class FakePool:
    """A pool, the newest process of each of its slots, and its results."""

    shares_files = True

    def __init__(self, workers: int) -> None:
        self.processes: dict[str, FakeProcess] = {}
        self.results: dict[int, Outcome] = {}
        self.pool = RewardPool(RewardSettings(workers=workers), launch=self, on_result=self._add)

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        process = self.processes[spec.name] = FakeProcess(spec.name, hear, lose)
        return process

    def _add(self, result: ScoreResult) -> None:
        self.results[result.response_id.group.prompt] = result.outcome

    def process_of(self, number: int) -> FakeProcess:
        """The process that starts on this response next."""
        (worker,) = [r.worker for r in self.pool.status().running if r.response_id == name(number)]
        return self.processes[worker]

    def submit(self, number: int) -> None:
        self.pool.submit(task(number, ""))

    def get_ready(self) -> None:
        for process in self.processes.values():
            process.hear(RewardReady())


def with_pool(workers: int, act: Callable[[FakePool], None]) -> None:
    async def scenario() -> None:
        fake = FakePool(workers)
        starting: Awaitable[None] = asyncio.ensure_future(fake.pool.start())
        await asyncio.sleep(0)
        fake.get_ready()
        await starting
        act(fake)
        await fake.pool.stop()

    asyncio.run(scenario())


def fill(fake: FakePool, workers: int) -> None:
    """Each process has scored a response and works on another. Number 99 waits behind one of them."""
    for number in range(workers):
        fake.submit(100 + number)
    for number in range(workers):
        fake.process_of(100 + number).score(100 + number)
    for number in range(workers):
        fake.submit(number)
    fake.submit(99)


def test_a_response_is_not_blamed_for_the_ends_of_processes_that_had_scored_others() -> None:
    def act(fake: FakePool) -> None:
        fill(fake, 6)
        for number in range(6):
            process = fake.process_of(number)
            process.score(number)
            process.lose("killed")
        fake.get_ready()
        fake.process_of(99).score(99)
        assert fake.results[99] is Outcome.OK

    with_pool(6, act)


def test_a_process_that_runs_out_of_memory_passes_the_responses_behind_on_before_it_ends() -> None:
    def act(fake: FakePool) -> None:
        fill(fake, 20)
        for number in range(20):
            process = fake.process_of(number)
            process.hear(RewardEnding())
            process.score(number)
            assert number == 19 or fake.pool.status().num_queued == 0, "another process has it at once"
            process.lose("exited with code 71")
        fake.get_ready()
        fake.process_of(99).score(99)
        assert fake.results[99] is Outcome.OK

    with_pool(20, act)


def test_a_response_that_ends_fresh_processes_before_they_start_on_it_is_a_crash() -> None:
    def act(fake: FakePool) -> None:
        fake.submit(1)
        for _ in range(3):
            assert fake.results == {}
            fake.process_of(1).lose("killed")
            fake.get_ready()
        assert fake.results == {1: Outcome.CRASH}

    with_pool(1, act)


def test_a_response_that_ends_every_process_is_a_crash_even_if_each_had_scored_others() -> None:
    def act(fake: FakePool) -> None:
        fill(fake, 12)
        for number in range(12):
            assert 99 not in fake.results
            process = fake.process_of(number)
            process.score(number)
            process.lose("killed")
        assert fake.results[99] is Outcome.CRASH

    with_pool(12, act)


def test_a_process_that_has_seen_a_signal_to_stop_gives_back_all_its_tasks_and_is_not_blamed() -> None:
    def act(fake: FakePool) -> None:
        fill(fake, 1)
        for _ in range(20):
            process = fake.process_of(0)
            process.hear(ScoreStarted(response_id=name(0), limit_s=10.0))
            process.hear(TaskReturned(response_id=name(0)))
            assert fake.pool.status().num_queued == 2, "its own and the one behind it"
            process.lose("exited with code 0")
            fake.get_ready()
        assert {0, 99}.isdisjoint(fake.results)
        fake.process_of(0).score(0)
        fake.process_of(99).score(99)
        assert (fake.results[0], fake.results[99]) == (Outcome.OK, Outcome.OK)

    with_pool(1, act)
