"""Workers of a few lines, for tests of workers that are Ray actors."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import ray
import torch

from tailrace.core.ids import Version
from tailrace.weights.address import RAY_OBJECT_STORE, ChannelAddress
from tailrace.weights.channel import VersionNotPublished, WriterLost
from tailrace.weights.collective.own_address import own_address
from tailrace.weights.more_kinds import MORE_KINDS
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
from tailrace.weights.slots.two_slots import layout_of
from tailrace.weights.sources import open_source
from tailrace.workers.link import Link
from tailrace.workers.sample_transfer import Batch

READ_AT_IMPORT = os.environ.get("TAILRACE_TEST_VARIABLE")


def tell_surroundings(link: Link, init: object) -> None:
    print("a line of output", flush=True)
    os.system("echo a line of a child")
    link.send((READ_AT_IMPORT, os.getcwd()))
    link.receive()


def print_much_and_wait(link: Link, init: object) -> None:
    """The end of the last line is still in the buffer of the stream when the message is sent."""
    print(*("a long line of output" * 10 for _ in range(20_000)), "the last line", sep="\n")
    print("and a word", end="")
    link.send("printed")
    link.receive()


def tell_node(link: Link, init: object) -> None:
    link.send((ray.get_runtime_context().get_node_id(), os.getpid()))
    link.receive()


def tell_address(link: Link, init: object) -> None:
    link.send((own_address(), os.environ.get("GLOO_SOCKET_IFNAME")))
    link.receive()


def tell_devices(link: Link, init: object) -> None:
    link.send((ray.get_runtime_context().get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES")))
    link.receive()


def leave_at_once(link: Link, init: int) -> None:
    os._exit(init)


def read_samples(link: Link, init: object) -> None:
    """Receives a batch and says how many samples it has."""
    batch = link.receive()
    link.send(len(_as_batch(batch).read()))


def _as_batch(message: object) -> Batch:
    assert hasattr(message, "read")
    return message


def weights(version: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield "embed", torch.arange(12).view(3, 4).float() + version
    yield "norm", torch.full((5,), version, dtype=torch.bfloat16)
    yield "step", torch.tensor(version)


def publish(link: Link, init: object) -> None:
    """Publishes each version that it is sent, and says where or why not."""
    sink = MORE_KINDS[RAY_OBJECT_STORE].create("run", layout_of(weights(0)))
    link.send(sink.address)
    while True:
        version = link.receive()
        assert isinstance(version, int)
        try:
            sink.publish(Version(version), weights(version))
            link.send(version)
        except ValueError as error:
            link.send(str(error))


SLICES = (Slice("embed", ((1, 3), (0, 2))), Slice("norm", ((0, 5),)), Slice("step", ()))


def pull(link: Link, init: ChannelAddress) -> None:
    """Pulls at least each version that it is sent, and says what it got."""
    transfers = [Transfer(slice=one, sender="training actor", receiver="engine") for one in SLICES]
    source = None
    while True:
        version = link.receive()
        assert isinstance(version, int)
        try:
            source = source or open_source(init)
            found = source.fetch(Version(version), transfers)
        except (VersionNotPublished, WriterLost) as error:
            link.send(type(error).__name__)
            continue
        for tensor in found.slices.values():
            tensor += 0  # they belong to the receiver
        link.send((found.version, {one.parameter: _plain(tensor) for one, tensor in found.slices.items()}))


def pull_for_eight_ranks(link: Link, init: object) -> None:
    """Publishes a parameter, fetches the slices of eight ranks, and says how many bytes of memory of its own each fetch
    took at most, and how many bytes the parameter has."""
    parameter = torch.zeros(32768, 256)  # large beside the megabyte that Ray takes for a moment
    sink = MORE_KINDS[RAY_OBJECT_STORE].create("run", layout_of([("w", parameter)]))
    sink.publish(Version(1), [("w", parameter)])
    source, most = open_source(sink.address), []
    for rank in range(8):
        one = Slice("w", ((4096 * rank, 4096 * (rank + 1)), (0, 256)))
        transfers = [Transfer(slice=one, sender="training actor", receiver=f"rank {rank}")]
        source.fetch(Version(1), transfers)  # what Ray keeps after a first time does not count
        tracemalloc.start()
        source.fetch(Version(1), transfers)
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    link.send((most, parameter.nbytes))
    link.receive()


def _plain(tensor: torch.Tensor) -> tuple[str, object]:
    return str(tensor.dtype), np.asarray(tensor.float()).tolist()


def sleep_after_a_word(link: Link, init: object) -> None:
    link.send("busy")
    time.sleep(1000)
