"""The adapter of rollout workers writes payload before it posts events, and keeps their order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.config.settings import ModelSettings, RolloutSettings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, TrajectoryId, Version
from tailrace.engines.contract import Output
from tailrace.runtime.rollout_adapter import RolloutAdapter
from tailrace.runtime.work_thread import WorkThread
from tailrace.runtime.worker import Hear, Lose, WorkerSpec
from tailrace.store.segment import Segment
from tailrace.workers.messages import Report, RolloutInit, RolloutReady

INIT = RolloutInit(
    checkpoint=Path("model"), model=ModelSettings(device="cpu"), rollout=RolloutSettings(), max_length=64, seed=0
)


class Workers:
    """Launches nothing, and speaks for the workers."""

    shares_files = True

    def __init__(self) -> None:
        self.specs: list[WorkerSpec] = []
        self.ends: list[tuple[Hear, Lose]] = []

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> Any:
        self.specs.append(spec)
        self.ends.append((hear, lose))


class Store:
    def __init__(self, story: list[object]) -> None:
        self._story = story

    def append(self, segments: Iterable[Segment]) -> None:
        self._story.append([segment.trajectory.member for segment in segments])


def report(member: int, num_tokens: int = 3) -> Report:
    segment = Segment(
        trajectory=TrajectoryId(GroupId("train", 0, 0), member),
        start=0,
        version=Version(0),
        tokens=np.zeros(num_tokens, np.int32),
        logprobs=np.zeros(num_tokens, np.float32),
        mask=np.ones(num_tokens, np.uint8),
    )
    outputs = (Output(segment=segment, finish=None),)
    return Report(version=Version(0), outputs=outputs, num_preemptions=0, submit_s=0.0, interrupt_s=0.0, prefill=None)


def test_what_is_heard_in_one_turn_is_written_together_before_any_event_and_a_loss_comes_last() -> None:
    story: list[object] = []

    async def scenario() -> Workers:
        work, workers = WorkThread("payload"), Workers()
        adapter = RolloutAdapter(
            INIT,
            launch=workers,
            request=lambda trajectory, start: None,  # type: ignore[arg-type, return-value]
            channel=lambda: None,  # type: ignore[arg-type, return-value]
            store=Store(story),  # type: ignore[arg-type]
            post=story.append,
            work=work,
        )
        for instance in (0, 1):
            adapter.start(do.StartInstance(instance=InstanceId(instance)))
        (hear, lose), (hear_other, _) = workers.ends
        hear(RolloutReady(version=Version(0)))
        hear(report(0))
        hear_other(report(1))
        hear(report(2, num_tokens=0))
        lose("it was killed")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await work.ask(lambda: None)
        work.close()
        return workers

    workers = asyncio.run(scenario())
    assert story[0] == [0, 1], "a report without tokens has nothing to write"
    assert [(type(event), event.instance) for event in story[1:]] == [  # type: ignore[attr-defined]
        (ev.InstanceStarted, 0),
        (ev.RolloutReported, 0),
        (ev.RolloutReported, 1),
        (ev.RolloutReported, 0),
        (ev.InstanceLost, 0),
    ]
    assert all(spec.gather_s > 0 for spec in workers.specs)
