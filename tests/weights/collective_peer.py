"""A process at one end of the collective channel. It is told what to do by lines, and answers with lines.

collective_peer.py sender      says its address; "publish N" publishes version N
collective_peer.py receiver    "pull ADDRESS" pulls; "stop in the middle" asks for slices and never takes them
"""

from __future__ import annotations

import sys
import time

import torch

from tailrace.core.ids import Version
from tailrace.weights.collective.sink import CollectiveSink
from tailrace.weights.collective.source import CollectiveSource
from tailrace.weights.sharding.shards import whole_parts
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
from tailrace.weights.slots.two_slots import layout_of

CPU = torch.device("cpu")
SHAPE = (2048, 1024)
"""Large enough that nothing between the two processes can hold it."""


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.full(SHAPE, float(version))) for name in ("a", "b", "c", "d")]


def say(line: str) -> None:
    print(line, file=sys.__stdout__, flush=True)


def send() -> None:
    sink = CollectiveSink(whole_parts(layout_of(weights(0))), CPU)
    say(sink.address.location)
    for line in sys.stdin:
        version = int(line.split()[-1])
        sink.publish(Version(version), weights(version))
        say(f"published {version}")


class Stuck(CollectiveSource):
    is_stuck = False

    def _joined(self):  # type: ignore[no-untyped-def]
        group = super()._joined()
        return StuckGroup() if self.is_stuck else group


class StuckGroup:
    uses_devices = False

    def receive(self, expected: object) -> None:
        say("asked")
        time.sleep(600)


def receive() -> None:
    source: Stuck | None = None
    for line in sys.stdin:
        if line.startswith("pull"):
            source = Stuck(line.split()[1], CPU)
        assert source is not None
        source.is_stuck = not line.startswith("pull")
        slices = [Slice(parameter.name, parameter.box) for parameter in source.parameters()]
        transfers = [Transfer(slice=one, sender="training rank 0", receiver="r") for one in slices]
        say(f"pulled {source.fetch(Version(0), transfers).version}")


if __name__ == "__main__":
    sys.stdout = sys.stderr  # answers alone go to the output
    send() if sys.argv[1] == "sender" else receive()
