"""The adapter of rollout workers writes payload before it posts events, keeps their order, and writes nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Layout, Parallelism
from tailrace.core.schedule.parallelism import Division
from tailrace.engines.contract import Output
from tailrace.runtime.adapters.rollout_adapter import RolloutAdapter
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerSpec
from tailrace.runtime.threads.work_thread import WorkThread
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment
from tailrace.workers.messages import (
    Aborted,
    Pulled,
    PullFailed,
    Refused,
    Released,
    Report,
    RolloutInit,
    RolloutReady,
)

INIT = RolloutInit(
    checkpoint=Path("model"), model=ModelSettings(device="cpu"), rollout=RolloutSettings(), max_length=64, seed=0
)
I0, I1, I2 = (InstanceId(number) for number in range(3))


class Worker:
    """Does nothing that it is told."""

    is_alive = True

    def send(self, message: object) -> None:
        pass

    def kill(self) -> None:
        pass

    async def stop(self, grace_s: float) -> None:
        pass


class Workers:
    """Launches nothing, and speaks for the workers."""

    shares_files = True

    def __init__(self) -> None:
        self.specs: list[WorkerSpec] = []
        self.ends: list[tuple[Hear, Lose]] = []

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> Worker:
        self.specs.append(spec)
        self.ends.append((hear, lose))
        return Worker()


class Told:
    """A store that also notes what it is given."""

    def __init__(self, store: PayloadStore, story: list[object]) -> None:
        self._store, self._story = store, story

    def append(self, segments: Any) -> None:
        segments = list(segments)
        self._story.append([segment.response_id.member for segment in segments])
        self._store.append(segments)


class Stage:
    """An adapter with workers that a test speaks for. ``story``: what was written and posted, in order."""

    def __init__(self, store: PayloadStore) -> None:
        self.store, self.story, self.workers = store, list[object](), Workers()
        self.texts: dict[ResponseId, list[int]] = {}
        """What the store holds in the end."""
        self.work = WorkThread("payload")
        self.adapter = self.make()

    def make(self, **given: Any) -> RolloutAdapter:
        return RolloutAdapter(
            INIT,
            launch=self.workers,
            request=lambda response, start: None,  # type: ignore[arg-type, return-value]
            channel=lambda: None,  # type: ignore[arg-type, return-value]
            store=Told(self.store, self.story),  # type: ignore[arg-type]
            post=self.story.append,
            work=self.work,
            **given,
        )

    def start(self, instance: InstanceId = I0, incarnation: int = 1) -> tuple[Hear, Lose]:
        self.adapter.start(do.StartInstance(instance=instance, incarnation=incarnation))
        return self.workers.ends[-1]

    def submit(self, *responses: ResponseId, start: int = 0, instance: InstanceId = I0) -> None:
        dispatches = tuple(do.Dispatch(response, start) for response in responses)
        self.adapter.submit(do.Submit(instance=instance, dispatches=dispatches))

    async def settle(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await self.work.ask(lambda: None)

    @property
    def lengths(self) -> dict[ResponseId, int]:
        return {response: len(text) for response, text in self.texts.items()}

    @property
    def events(self) -> list[Any]:
        return [each for each in self.story if isinstance(each, ev.Event)]

    @property
    def told(self) -> list[tuple[int, Finish | None]]:
        """Length and end of each response in the events."""
        parts = [part for event in self.events if isinstance(event, ev.RolloutReported) for part in event.parts]
        return [(part.length, getattr(part, "finish", None)) for part in parts]


def on_stage(directory: Path, play: Callable[[Stage], Any]) -> Stage:
    async def scenario() -> Stage:
        with PayloadStore.open(directory) as store:
            stage = Stage(store)
            try:
                await play(stage)
                await stage.settle()
                stage.texts = {each: store.response(each).tokens.tolist() for each in store.held()}
            finally:
                stage.work.close()
            return stage

    return asyncio.run(scenario())


def response(member: int = 0, attempt: int = 0) -> ResponseId:
    return ResponseId(GroupId("train", 0, 0), member, attempt)


def report(*parts: tuple[ResponseId, int, int], finish: Finish | None = None, salt: int = 0) -> Report:
    """A report with the tokens of each response from one position to another: their numbers, plus ``salt``."""
    outputs = tuple(Output(segment=_segment(*part, salt=salt), finish=finish) for part in parts)
    return Report(version=Version(0), outputs=outputs, num_preemptions=0, submit_s=0.0, interrupt_s=0.0, prefill=None)


def _segment(response: ResponseId, start: int, end: int, *, salt: int) -> Segment:
    return Segment(
        response_id=response,
        start=start,
        version=Version(0),
        tokens=np.arange(start, end, dtype=np.int32) + salt,
        logprobs=np.zeros(end - start, np.float32),
        mask=np.ones(end - start, np.uint8),
    )


X = response()
FIRST, LAST = report((X, 0, 10)), report((X, 10, 20), finish=Finish.STOP)


def test_what_is_heard_in_one_turn_is_written_together_before_any_event_and_a_loss_comes_last(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, lose = stage.start(I0)
        hear_other, _ = stage.start(I1)
        stage.submit(response(0), response(2))
        stage.submit(response(1), instance=I1)
        hear(RolloutReady(version=Version(0)))
        hear(report((response(0), 0, 3)))
        hear_other(report((response(1), 0, 3)))
        hear(report((response(2), 0, 0)))
        lose("it was killed")

    stage = on_stage(tmp_path, play)
    assert stage.story[0] == [0, 1], "a report without tokens has nothing to write"
    assert [(type(event), event.instance) for event in stage.events] == [
        (ev.InstanceStarted, 0),
        (ev.RolloutReported, 0),
        (ev.RolloutReported, 1),
        (ev.RolloutReported, 0),
        (ev.InstanceLost, 0),
    ]
    assert all(spec.gather_s > 0 for spec in stage.workers.specs)


def test_a_report_that_comes_again_does_not_cut_a_finished_response(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, _ = stage.start()
        stage.submit(X)
        for each in (FIRST, LAST, LAST, FIRST):
            hear(each)
            await stage.settle()

    stage = on_stage(tmp_path, play)
    assert stage.texts == {X: list(range(20))}
    assert stage.told == [(10, None), (20, Finish.STOP)]
    assert [event.num_refused for event in stage.events] == [0, 0, 1, 1]


def test_a_report_that_overtakes_an_earlier_one_waits_for_it(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, _ = stage.start()
        stage.submit(X)
        for each in (LAST, FIRST):
            hear(each)
            await stage.settle()

    stage = on_stage(tmp_path, play)
    assert stage.texts == {X: list(range(20))}
    assert stage.told == [(20, Finish.STOP)], "nothing is told before it is in the store, and it ends once"
    assert [event.num_refused for event in stage.events] == [0, 0]


def test_what_a_lost_worker_said_last_is_not_written_when_another_goes_on_with_its_response(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, lose = stage.start(incarnation=1)
        stage.submit(X)
        hear(FIRST)
        lose("it was killed")
        await stage.settle()
        hear(report((X, 10, 13), salt=500))
        await stage.settle()
        hear_next, _ = stage.start(incarnation=2)
        stage.submit(X, start=10)
        hear_next(report((X, 10, 15)))
        hear(report((X, 15, 17), salt=500))
        hear(LAST)
        await stage.settle()

    stage = on_stage(tmp_path, play)
    assert stage.texts == {X: list(range(15))}
    assert stage.told == [(10, None), (15, None)]
    assert [event.incarnation for event in stage.events] == [1, 1, 1, 2, 1, 1]


def test_only_what_an_instance_was_given_is_written(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, _ = stage.start(I0)
        hear_other, _ = stage.start(I1, incarnation=2)
        stage.submit(X)
        hear(report((X, 0, 2), (response(attempt=1), 0, 9), (response(7), 0, 9)))
        hear_other(report((X, 2, 9)))

    stage = on_stage(tmp_path, play)
    assert stage.lengths == {X: 2}
    assert [event.num_refused for event in stage.events] == [2, 1]


def test_an_aborted_response_is_not_written_any_more(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, _ = stage.start(I0)
        hear_other, _ = stage.start(I1, incarnation=2)
        stage.submit(X, response(1))
        hear(FIRST)
        hear_other(Aborted(lengths=((response(1), 0),)))
        hear(Aborted(lengths=((X, 10),)))
        hear(LAST)
        hear(report((response(1), 0, 4)))

    stage = on_stage(tmp_path, play)
    assert stage.lengths == {X: 10, response(1): 4}, "the abort of another instance is none of its own"


def test_a_response_that_is_given_again_replaces_what_lies_beyond_its_last_journalled_token(tmp_path: Path) -> None:
    """The controller was killed between the writing of tokens and their event."""

    async def before(stage: Stage) -> None:
        hear, _ = stage.start()
        stage.submit(X)
        hear(report((X, 0, 15)))

    async def after(stage: Stage) -> None:
        hear, _ = stage.start(incarnation=2)
        stage.submit(X, start=10)
        hear(report((X, 10, 12), salt=100))
        await stage.settle()
        hear(report((X, 12, 13), finish=Finish.STOP))

    on_stage(tmp_path, before)
    stage = on_stage(tmp_path, after)
    assert stage.texts == {X: [*range(10), 110, 111, 12]}
    assert stage.told == [(12, None), (13, Finish.STOP)]


def test_a_response_that_was_interrupted_goes_on_on_the_same_worker(tmp_path: Path) -> None:
    stopped = report((X, 4, 6), finish=Finish.INTERRUPTED)

    async def play(stage: Stage) -> None:
        hear, _ = stage.start()
        stage.submit(X)
        for each in (report((X, 0, 4)), stopped):
            hear(each)
        await stage.settle()
        stage.submit(X, start=6)
        for each in (stopped, report((X, 6, 9)), report((X, 9, 9), finish=Finish.LENGTH)):
            hear(each)

    stage = on_stage(tmp_path, play)
    assert stage.texts == {X: list(range(9))}
    assert stage.told == [(4, None), (6, Finish.INTERRUPTED), (9, None), (9, Finish.LENGTH)]


def test_every_event_says_which_start_of_the_instance_it_comes_from(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, _ = stage.start(I0, incarnation=5)
        _, lose_other = stage.start(I1, incarnation=6)
        for message in (
            RolloutReady(version=Version(0)),
            Pulled(version=Version(1), seconds=0.1),
            PullFailed(reason="no writer"),
            Aborted(lengths=()),
            Released(seconds=0.1),
            report(),
        ):
            hear(message)
        lose_other("it was killed")
        stage.adapter.retire(do.StopInstance(instance=I0))
        await stage.settle()
        await stage.settle()

    stage = on_stage(tmp_path, play)
    assert [(type(event).__name__, event.incarnation) for event in stage.events] == [
        ("InstanceStarted", 5),
        ("WeightsPulled", 5),
        ("PullFailed", 5),
        ("ResponsesAborted", 5),
        ("MemoryReleased", 5),
        ("RolloutReported", 5),
        ("InstanceLost", 6),
        ("InstanceStopped", 5),
    ]


def test_a_worker_that_was_replaced_neither_ends_the_run_nor_the_worker_in_its_place(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, lose = stage.start(incarnation=1)
        hear_next, _ = stage.start(incarnation=2)
        hear(Refused(reason="too long"))
        lose("it was killed")
        stage.submit(X)
        hear_next(FIRST)
        await stage.settle()
        hear_next(Refused(reason="much too long"))

    stage = on_stage(tmp_path, play)
    assert stage.lengths == {X: 10}, "the response was given to the new worker"
    assert [type(event).__name__ for event in stage.events] == ["InstanceLost", "RolloutReported", "StopRequested"]
    assert stage.events[-1].reason == "much too long"


def test_a_repeated_report_of_a_response_that_goes_on_is_counted(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        hear, _ = stage.start()
        stage.submit(X)
        for each in (FIRST, FIRST, LAST):
            hear(each)

    stage = on_stage(tmp_path, play)
    assert [event.num_refused for event in stage.events] == [0, 1, 0]
    assert stage.lengths == {X: 20}


@pytest.mark.parametrize("is_early", [False, True])
def test_nothing_is_written_behind_the_end_of_a_response(tmp_path: Path, is_early: bool) -> None:
    behind = report((X, 20, 25))

    async def play(stage: Stage) -> None:
        hear, _ = stage.start()
        stage.submit(X)
        for each in (behind, LAST, FIRST) if is_early else (FIRST, LAST, behind):
            hear(each)

    stage = on_stage(tmp_path, play)
    assert stage.lengths == {X: 20}
    assert stage.told[-1] == (20, Finish.STOP)


def test_an_instance_of_a_parallel_size_starts_with_its_numbers_and_can_stop_and_start_again(tmp_path: Path) -> None:
    sizes = Parallelism(
        layouts=(
            Layout(division=Division(1), first=0, count=2, kv_tokens=100, max_running=4),
            Layout(division=Division(2), first=2, count=1, kv_tokens=300, max_running=8),
        )
    )

    async def play(stage: Stage) -> None:
        adapter = stage.make(parallelism=sizes, env=lambda instance: {"SEAT": str(instance)})
        for incarnation in (1, 2):
            adapter.start(do.StartInstance(instance=I2, incarnation=incarnation, size=2, devices=(0, 1)))
            stage.workers.ends[-1][0](RolloutReady(version=Version(0)))
            await stage.settle()
            adapter.retire(do.StopInstance(instance=I2))
            await stage.settle()
            await stage.settle()
        adapter.start(do.StartInstance(instance=I0, incarnation=3))

    stage = on_stage(tmp_path, play)
    assert [(type(event).__name__, event.instance, event.incarnation) for event in stage.events] == [
        ("InstanceStarted", 2, 1), ("InstanceStopped", 2, 1), ("InstanceStarted", 2, 2), ("InstanceStopped", 2, 2)
    ]  # fmt: skip
    of_two, again, plain = (spec.init.rollout for spec in stage.workers.specs)
    assert (of_two.tensor_parallel_size, of_two.kv_tokens, of_two.max_running) == (2, 300, 8)
    assert again == of_two
    assert plain == INIT.rollout, "a command without a size asks for what the settings say"
    assert stage.workers.specs[0].env["SEAT"] == "2"
