"""A world with a deterministic engine, whose tokens go through the payload store as they do in a real run.

Which token comes next depends on the response and on the tokens before it; neither weights nor company nor
interruptions change it. So a response has one right text, ``whole``, however it came about.
"""

from __future__ import annotations

import random
import tempfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, TrajectoryId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.trajectory import Finish
from tailrace.core.schedule import Schedule
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

BUDGET = 12


def key(trajectory: TrajectoryId) -> int:
    return zlib.crc32(str(trajectory).encode())


def whole(trajectory: TrajectoryId) -> list[int]:
    """The text it has when nothing interrupts it."""
    natural = key(trajectory) % 5 + (20 if key(trajectory) % 3 == 0 else 0)
    text: list[int] = []
    while len(text) < min(natural, BUDGET):
        text.append(next_token(trajectory, text))
    return text


def next_token(trajectory: TrajectoryId, text: list[int]) -> int:
    return zlib.crc32(repr((key(trajectory), text)).encode()) % 1000


def next_logprob(trajectory: TrajectoryId, text: list[int]) -> float:
    return -next_token(trajectory, text) / 1000


class TokenWorld(World):
    def __init__(self, schedule: Schedule, rng: random.Random, *, num_prompts: int, trouble: float = 0.0) -> None:
        super().__init__(schedule, rng, num_prompts=num_prompts, trouble=trouble, checks=False)
        self._directory = tempfile.TemporaryDirectory()
        self.store = PayloadStore.open(Path(self._directory.name))
        self.texts: dict[InstanceId, dict[TrajectoryId, list[int]]] = {}
        """What each instance holds of its responses."""
        self.told: dict[TrajectoryId, list[int]] = {}
        """What was heard of each response."""
        self.heard: set[TrajectoryId] = set()
        """Those of the last report."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.store.close()
        self._directory.cleanup()

    def answer(self, command: do.Command) -> None:
        if isinstance(command, do.Submit):
            texts = self.texts.setdefault(command.instance, {})
            for dispatch in command.dispatches:
                known = self.read(dispatch.trajectory)
                assert len(known) == dispatch.start, "it does not go on where it stopped"
                texts[dispatch.trajectory] = known
        super().answer(command)

    def read(self, trajectory: TrajectoryId) -> list[int]:
        return [] if trajectory not in self.store.held() else self.store.response(trajectory).tokens.tolist()

    def report(self, instance: InstanceId, stopping: tuple[TrajectoryId, ...] = ()) -> None:
        """Every response is some tokens further; one that is at its end has finished."""
        running, version = self.running[instance], self.versions[instance]
        self.heard = set(running)
        progressed, finished = [], []
        for trajectory in list(running):
            text, end = self.texts[instance][trajectory], whole(trajectory)
            new = min(self.rng.randrange(4), len(end) - len(text))
            self.store.append([self.generate(trajectory, text, new, version)] if new else [])
            self.told[trajectory] = self.read(trajectory)
            running[trajectory] = len(text)
            has_ended = len(text) == len(end)
            if has_ended or trajectory in stopping:
                del running[trajectory]
                ended_by_itself = Finish.LENGTH if len(text) == BUDGET else Finish.STOP
                finish = ended_by_itself if has_ended else Finish.INTERRUPTED
                finished.append(ev.Finished(trajectory=trajectory, length=len(text), finish=finish))
            else:
                progressed.append(ev.Progressed(trajectory=trajectory, length=len(text)))
        report = ev.RolloutReported(
            instance=instance, version=version, progressed=tuple(progressed), finished=tuple(finished)
        )
        self.say(instance, report)

    def generate(self, trajectory: TrajectoryId, text: list[int], count: int, version: Version) -> Segment:
        start, logprobs = len(text), []
        for _ in range(count):
            logprobs.append(next_logprob(trajectory, text))
            text.append(next_token(trajectory, text))
        return Segment(
            trajectory=trajectory,
            start=start,
            version=version,
            tokens=np.array(text[start:], np.int32),
            logprobs=np.array(logprobs, np.float32),
            mask=np.ones(count, np.uint8),
        )

    def score(self, trajectory: TrajectoryId) -> ev.Scored:
        outcome = Outcome.TIMEOUT if self.rng.random() < self.trouble else Outcome.OK
        return ev.Scored(trajectory=trajectory, outcome=outcome, score=key(trajectory) % 7 / 7, seconds=0.01)
