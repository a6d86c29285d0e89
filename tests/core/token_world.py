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
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Schedule
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

BUDGET = 12


def key(response: ResponseId) -> int:
    return zlib.crc32(str(response).encode())


def whole(response: ResponseId) -> list[int]:
    """The text it has when nothing interrupts it."""
    natural = key(response) % 5 + (20 if key(response) % 3 == 0 else 0)
    text: list[int] = []
    while len(text) < min(natural, BUDGET):
        text.append(next_token(response, text))
    return text


def next_token(response: ResponseId, text: list[int]) -> int:
    return zlib.crc32(repr((key(response), text)).encode()) % 1000


def next_logprob(response: ResponseId, text: list[int]) -> float:
    return -next_token(response, text) / 1000


class TokenWorld(World):
    def __init__(self, schedule: Schedule, rng: random.Random, *, num_prompts: int, trouble: float = 0.0) -> None:
        super().__init__(schedule, rng, num_prompts=num_prompts, trouble=trouble, checks=False)
        self._directory = tempfile.TemporaryDirectory()
        self.store = PayloadStore.open(Path(self._directory.name))
        self.texts: dict[InstanceId, dict[ResponseId, list[int]]] = {}
        """What each instance holds of its responses."""
        self.told: dict[ResponseId, list[int]] = {}
        """What was heard of each response."""
        self.heard: set[ResponseId] = set()
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
                known = self.read(dispatch.response)
                assert len(known) == dispatch.start, "it does not go on where it stopped"
                texts[dispatch.response] = known
        super().answer(command)

    def read(self, response: ResponseId) -> list[int]:
        return [] if response not in self.store.held() else self.store.response(response).tokens.tolist()

    def report(self, instance: InstanceId, stopping: tuple[ResponseId, ...] = ()) -> None:
        """Every response is some tokens further; one that is at its end has finished."""
        running, version = self.running[instance], self.versions[instance]
        self.heard = set(running)
        progressed, finished = [], []
        for response in list(running):
            text, end = self.texts[instance][response], whole(response)
            new = min(self.rng.randrange(4), len(end) - len(text))
            self.store.append([self.generate(response, text, new, version)] if new else [])
            self.told[response] = self.read(response)
            running[response] = len(text)
            has_ended = len(text) == len(end)
            if has_ended or response in stopping:
                del running[response]
                ended_by_itself = Finish.LENGTH if len(text) == BUDGET else Finish.STOP
                finish = ended_by_itself if has_ended else Finish.INTERRUPTED
                finished.append(ev.Finished(response=response, length=len(text), finish=finish))
            else:
                progressed.append(ev.Progressed(response=response, length=len(text)))
        report = ev.RolloutReported(
            instance=instance, version=version, progressed=tuple(progressed), finished=tuple(finished)
        )
        self.say(instance, report)

    def generate(self, response: ResponseId, text: list[int], count: int, version: Version) -> Segment:
        start, logprobs = len(text), []
        for _ in range(count):
            logprobs.append(next_logprob(response, text))
            text.append(next_token(response, text))
        return Segment(
            response_id=response,
            start=start,
            version=version,
            tokens=np.array(text[start:], np.int32),
            logprobs=np.array(logprobs, np.float32),
            mask=np.ones(count, np.uint8),
        )

    def score(self, response: ResponseId) -> ev.Scored:
        outcome = Outcome.TIMEOUT if self.rng.random() < self.trouble else Outcome.OK
        return ev.Scored(response=response, outcome=outcome, score=key(response) % 7 / 7, seconds=0.01)
