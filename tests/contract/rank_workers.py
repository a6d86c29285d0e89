"""Ranks of a few lines, for tests of the group they form."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.ids import Version
from tailrace.workers.link import Link
from tailrace.workers.messages import (
    Accumulated,
    FinishStep,
    Forward,
    LogprobsComputed,
    Meeting,
    Publish,
    Published,
    Refused,
    SaveFailed,
    StepFinished,
)


@dataclass(frozen=True)
class Ask:
    """What a rank shall do."""

    what: str
    rank: int = 0


def answer(link: Link, rank: int) -> None:
    """Says where it is, or what it was told about that; then answers."""
    if rank == 0:
        link.send(Meeting(host="here", port=7, key="k"))
    else:
        meeting = link.receive()
        assert meeting == Meeting(host="here", port=7, key="k")
    while True:
        match link.receive():
            case Ask(what="fail", rank=guilty) if guilty == rank:
                raise ValueError("out of paper")
            case Ask(what="refuse", rank=guilty) if guilty == rank:
                link.send(Refused(reason=f"rank {rank} cannot"))
            case Ask(what="fail to save", rank=guilty) if guilty == rank:  # the others wait for it and do not answer
                link.send(SaveFailed(model="m", version=Version(4), reason=f"the disk of rank {rank} is full"))
            case Ask(what="cross"):
                # A publish is answered by a thread: its answer may come before or after another one.
                answers = [_published(1), Accumulated(model="m", version=Version(1), num_responses=3, seconds=rank)]
                for each in answers if rank == 0 else reversed(answers):
                    link.send(each)
            case FinishStep(version=version):
                link.send(StepFinished(model="m", version=version, seconds=1.0 + rank, metrics=(("loss", 0.5),)))
            case Publish(version=version):
                link.send(_published(version))
            case Forward():
                # Every rank scores the first response and one that the others do not score.
                logprobs = tuple((name, [-1.0 - name] if name in (0, rank) else []) for name in range(3))
                link.send(LogprobsComputed(model="m", version=Version(0), logprobs=logprobs))  # type: ignore[arg-type]


def _published(version: int) -> Published:
    return Published(model="m", version=Version(version), seconds=0.1)
