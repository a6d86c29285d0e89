"""Several workers behind one handle: messages go to all of them, and their answers become one.

The workers are ranks of one training: they get the same messages and answer each with the same kind of message. When
all have answered, one joined answer is passed on. Answers of one kind to one version of a model are matched by their
order: the n-th of each worker belong together. A refusal or a failed checkpoint is passed on at once, because the
other workers may wait for this one; after a refusal the group is not used again. If one worker ends, the others are
ended too, and the group is lost.

The first worker says where the ranks meet (``Meeting``), because only its own machine knows a free port; the others
are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tailrace.runtime.launchers.worker import Hear, Launcher, Lose, WorkerHandle, WorkerSpec
from tailrace.workers.messages import (
    Accumulated,
    LogprobsComputed,
    Meeting,
    Published,
    Refused,
    Saved,
    SaveFailed,
    StepFinished,
)


class WorkerGroup:
    """Owns its workers."""

    def __init__(self, *, hear: Hear, lose: Lose) -> None:
        self._hear, self._lose = hear, lose
        self._workers: list[WorkerHandle] = []
        self._answers: dict[object, list[dict[int, object]]] = {}
        """Answers that some workers have not given yet, by what they answer: for each key a list of answers by rank. A
        worker may be ahead of the others, so the n-th answer of each rank goes to the n-th entry of the list."""
        self._held: list[object] | None = []
        """Messages to the others, who must first hear where to meet; None: they have."""
        self._endings: list[str] = []
        self._has_refused = self._is_stopping = self._is_killed = False

    @classmethod
    def start(cls, specs: Sequence[WorkerSpec], launch: Launcher, *, hear: Hear, lose: Lose) -> WorkerGroup:
        group = cls(hear=hear, lose=lose)
        for rank, spec in enumerate(specs):
            group._workers.append(
                launch(
                    spec,
                    hear=lambda message, rank=rank: group._take(rank, message),  # type: ignore[misc]
                    lose=group._end,
                )
            )
        return group

    @property
    def is_alive(self) -> bool:
        return not self._endings and all(worker.is_alive for worker in self._workers)

    def send(self, message: object) -> None:
        self._workers[0].send(message)
        if self._held is not None:
            self._held.append(message)
        else:
            self._tell_others(message)

    def _tell_others(self, message: object) -> None:
        for worker in self._workers[1:]:
            worker.send(message)

    def kill(self) -> None:
        self._is_killed = True
        for worker in self._workers:
            worker.kill()

    async def stop(self, grace_s: float) -> None:
        self._is_stopping = True
        await asyncio.gather(*(worker.stop(grace_s) for worker in self._workers))

    def _end(self, reason: str) -> None:
        """One worker has ended. The others wait for it in vain, so they end too. The group is lost when all have."""
        self._endings.append(reason)
        if len(self._endings) == 1:
            self.kill()
        if len(self._endings) == len(self._workers) and not self._is_stopping:
            self._lose(self._endings[0])

    def _take(self, rank: int, message: object) -> None:
        if self._is_killed or self._is_stopping:
            return  # a rank that lives a moment longer than another fails because of it
        match message:
            case Meeting():
                held, self._held = self._held or [], None
                for each in (message, *held):
                    self._tell_others(each)
            case Refused() if not self._has_refused:  # the other ranks may wait for this one for ever
                self._has_refused = True
                self._hear(message)
            case Refused():
                pass
            case _:
                self._gather(rank, message)

    def _gather(self, rank: int, message: object) -> None:
        """Pass an answer on when all ranks have given it; a failed checkpoint with its first failure."""
        kind = Saved if isinstance(message, SaveFailed) else type(message)  # both answer ``Save``
        key = (kind, getattr(message, "model", None), getattr(message, "version", None))
        rounds = self._answers.setdefault(key, [])
        given = next((each for each in rounds if rank not in each), None)
        if given is None:
            rounds.append(given := {})
        if isinstance(message, SaveFailed) and not _has_failure(given):
            self._hear(message)
        given[rank] = message
        if len(given) < len(self._workers):
            return
        rounds.remove(given)
        if not rounds:
            del self._answers[key]
        if not _has_failure(given):
            self._hear(joined([given[each] for each in range(len(self._workers))]))


def _has_failure(given: Mapping[int, object]) -> bool:
    return any(isinstance(answer, SaveFailed) for answer in given.values())


def joined(answers: Sequence[object]) -> object:
    """One answer for those of all ranks: times are those of the slowest, everything else the first rank's."""
    match answers[0]:
        case Accumulated() | Published() | Saved() | StepFinished() as first:
            slowest = max(answer.seconds for answer in answers)  # type: ignore[attr-defined]
            return replace(first, seconds=slowest)
        case LogprobsComputed() as first:
            scored = dict(first.logprobs)
            for answer in answers[1:]:  # a rank says nothing about responses that others have scored
                scored |= {name: found for name, found in answer.logprobs if len(found)}  # type: ignore[attr-defined]
            return replace(first, logprobs=tuple(scored.items()))
        case first:
            return first
