"""The channel through torch.distributed: the suite of all channels, several senders, and peers that are lost."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.register_assert_rewrite("weights.channel_suite")

from tailrace.core.ids import Version  # noqa: E402
from tailrace.weights.address import COLLECTIVE, ChannelAddress  # noqa: E402
from tailrace.weights.channel import VersionNotPublished, WriterLost  # noqa: E402
from tailrace.weights.collective.sink import CollectiveSink  # noqa: E402
from tailrace.weights.collective.source import CollectiveSource, backend_for  # noqa: E402
from tailrace.weights.puller import Puller  # noqa: E402
from tailrace.weights.sharding.shards import ParameterPart  # noqa: E402
from tailrace.weights.sharding.table import Heads, Holding, Scheme, Split, holdings  # noqa: E402
from tailrace.weights.sharding.transfer_plan import Slice, Transfer  # noqa: E402
from tailrace.weights.sources import open_source  # noqa: E402
from weights.channel_kinds import ChannelKind, CollectiveChannel  # noqa: E402
from weights.channel_suite import *  # noqa: E402, F403
from weights.models import parameters  # noqa: E402
from weights.writer_process import with_tests_on_path  # noqa: E402

CPU = torch.device("cpu")
HEADS = Heads(num_query=4, num_kv=2, size=2)
MODEL = parameters(HEADS)


@pytest.fixture
def kind() -> Iterator[ChannelKind]:
    found = CollectiveChannel()
    yield found
    for sink in found.sinks:
        sink.close()


def values(version: int) -> dict[str, Tensor]:
    """Every element of every version is different."""
    return {p.name: torch.arange(math.prod(p.shape)).view(p.shape) + 1000.0 * version for p in MODEL}


def part_of(sent: dict[str, Tensor], name: str, box: tuple[tuple[int, int], ...]) -> Tensor:
    return sent[name][tuple(slice(start, stop) for start, stop in box)]


class Trainer:
    """Ranks that each hold some rows of every parameter, all in this process."""

    def __init__(self, num_ranks: int, *, limit_s: float = 20.0) -> None:
        by_name = {parameter.name: parameter for parameter in MODEL}
        scheme = Scheme(num_workers=num_ranks, split=Split.ROWS)
        self.parts = [
            [ParameterPart(by_name[piece.parameter], piece.box) for piece in each.pieces]
            for each in holdings(MODEL, HEADS, scheme, side="trainer")
        ]
        self.sinks = [CollectiveSink(parts, CPU, limit_s=limit_s) for parts in self.parts]
        for sink in self.sinks:
            sink.join([each.endpoint for each in self.sinks])

    @property
    def address(self) -> ChannelAddress:
        return self.sinks[0].address

    def publish(self, version: int, *ranks: int) -> dict[str, Tensor]:
        sent = values(version)
        for rank in ranks or range(len(self.sinks)):
            parts = ((p.name, part_of(sent, p.name, box)) for p, box in self.parts[rank])
            self.sinks[rank].publish(Version(version), parts)
        return sent

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    found = Trainer(2)
    yield found
    found.close()


def engine(num_ranks: int) -> tuple[Holding, ...]:
    return holdings(MODEL, HEADS, Scheme(num_workers=num_ranks), side="engine")


def assert_right(pulled: dict[str, Tensor], receiver: Holding, sent: dict[str, Tensor]) -> None:
    assert len(pulled) == len(receiver.pieces)
    for piece in receiver.pieces:
        assert torch.equal(pulled[piece.parameter], part_of(sent, piece.parameter, piece.box))


def test_each_rank_of_an_engine_gets_its_slices_from_the_ranks_that_hold_them(trainer: Trainer) -> None:
    sent = trainer.publish(1)
    assert trainer.address.kind == COLLECTIVE
    for receiver in engine(2):
        version, [pulled] = Puller([receiver], open_source).pull(trainer.address, Version(1))
        assert version == 1
        assert_right(pulled, receiver, sent)
    source = CollectiveSource(trainer.address.location, CPU)
    assert [sender.worker for sender in source.senders()] == ["training rank 0", "training rank 1"]
    assert set(source.parameters()) == set(MODEL)


def test_only_the_version_that_all_ranks_have_published_is_fetched(trainer: Trainer) -> None:
    [receiver] = engine(1)
    puller = Puller([receiver], open_source)
    trainer.publish(1, 0)
    with pytest.raises(VersionNotPublished, match="version 1 is not published; the channel holds none yet"):
        puller.pull(trainer.address, Version(1))
    sent = trainer.publish(1, 1)
    trainer.publish(2, 1)
    version, [pulled] = puller.pull(trainer.address, Version(0))
    assert version == 1
    assert_right(pulled, receiver, sent)
    sent = trainer.publish(2, 0)
    version, [pulled] = puller.pull(trainer.address, Version(2))
    assert version == 2
    assert_right(pulled, receiver, sent)


class Interfering(CollectiveSource):
    """A receiver between whose questions something happens."""

    def __init__(self, location: str, interfere: list[object]) -> None:
        super().__init__(location, CPU)
        self._interfere = interfere

    def _newest(self) -> Version | None:
        found = super()._newest()
        if self._interfere:
            self._interfere.pop()()  # type: ignore[operator]
        return found


def test_a_version_that_is_replaced_between_two_questions_is_not_mixed_with_the_next(trainer: Trainer) -> None:
    trainer.publish(1)

    def replace() -> None:
        trainer.publish(2)
        trainer.publish(3)

    source = Interfering(trainer.address.location, [replace])
    [receiver] = engine(1)
    puller = Puller([receiver], lambda address: source)
    version, [pulled] = puller.pull(trainer.address, Version(1))
    assert version == 3
    assert_right(pulled, receiver, values(3))


def test_two_receivers_pull_at_different_times_and_one_that_ends_does_not_disturb_the_other(trainer: Trainer) -> None:
    first, second = (Puller([receiver], open_source) for receiver in engine(2))
    trainer.publish(1)
    assert first.pull(trainer.address, Version(1)).version == 1
    assert second.pull(trainer.address, Version(1)).version == 1
    trainer.publish(2)
    assert first._opened is not None
    first._opened.source.close()
    assert second.pull(trainer.address, Version(2)).version == 2
    trainer.publish(3)
    assert first.pull(trainer.address, Version(3)).version == 3, "a receiver that comes back forms a new group"


def test_a_sender_that_ends_is_a_failed_pull_with_its_name_and_a_new_channel_is_pulled_from(trainer: Trainer) -> None:
    [receiver] = engine(1)
    puller = Puller([receiver], open_source)
    trainer.publish(1)
    puller.pull(trainer.address, Version(1))
    trainer.sinks[1].close()
    with pytest.raises(WriterLost, match="training rank 1 has ended: waited for its versions"):
        puller.pull(trainer.address, Version(1))
    with pytest.raises(WriterLost, match="training rank 1 cannot be reached at "):
        puller.pull(trainer.address, Version(1))
    successor = Trainer(3)
    sent = successor.publish(1)
    _, [pulled] = puller.pull(successor.address, Version(1))
    assert_right(pulled, receiver, sent)
    successor.close()


def test_a_wrong_key_is_not_answered(trainer: Trainer) -> None:
    trainer.publish(1)
    location = trainer.address.location.replace("/", "/0")
    with pytest.raises(WriterLost, match="training rank 0 has ended: waited for its proof"):
        CollectiveSource(location, CPU, limit_s=5.0)


def test_two_processes_on_one_gpu_are_refused_and_a_cpu_among_gpus_means_gloo() -> None:
    assert backend_for(["GPU-a", "GPU-b", "GPU-c"]) == "nccl"
    assert backend_for(["cpu", "GPU-b"]) == "gloo"
    with pytest.raises(ValueError, match="two members of the weight channel are on one GPU, which NCCL refuses"):
        backend_for(["GPU-a", "GPU-b", "GPU-a"])


# Real processes


PEER = Path(__file__).with_name("collective_peer.py")


class Peer:
    """A process of the channel that does one thing per line it is told, and answers with a line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=with_tests_on_path() | {"OMP_NUM_THREADS": "1"},
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def stop(self) -> None:
        """Stop the process and wait until it has: its threads go on for a moment after the signal was sent."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    found: list[Peer] = []
    yield found
    for peer in found:
        peer.kill()


def test_a_sender_that_falls_silent_or_is_killed_fails_the_pull_and_a_group_is_formed_again(
    peers: list[Peer],
) -> None:
    sender = Peer("sender")
    peers.append(sender)
    location = sender.hear()
    assert sender.ask("publish 1") == "published 1"
    source = CollectiveSource(location, CPU)
    transfers = [Transfer(slice=one, sender="training rank 0", receiver="r") for one in _slices(source)]
    assert source.fetch(Version(1), transfers).version == 1
    limit_s, source._limit_s = source._limit_s, 0.5
    sender.stop()
    with pytest.raises(WriterLost, match=r"training rank 0 did not answer within 0.5 s: waited for its versions"):
        source.fetch(Version(1), transfers)
    os.kill(sender.process.pid, signal.SIGCONT)
    source._limit_s = limit_s
    assert source.fetch(Version(1), transfers).version == 1, "a group is formed again"
    assert sender.ask("publish 2") == "published 2"
    assert source.fetch(Version(2), transfers).version == 2
    sender.kill()
    with pytest.raises(WriterLost, match="training rank 0 has ended"):
        source.fetch(Version(1), transfers)


def test_a_sender_that_dies_while_it_owes_slices_is_a_failed_pull(peers: list[Peer]) -> None:
    sender = Peer("sender")
    peers.append(sender)
    location = sender.hear()
    sender.ask("publish 1")

    class Killing(CollectiveSource):
        def _joined(self):  # type: ignore[no-untyped-def]
            group = super()._joined()
            if self.is_armed:
                sender.kill()
            return group

        is_armed = False

    source = Killing(location, CPU)
    transfers = [Transfer(slice=one, sender="training rank 0", receiver="r") for one in _slices(source)]
    source.fetch(Version(1), transfers)
    source.is_armed = True
    with pytest.raises(WriterLost, match="weights cannot be fetched: "):
        source.fetch(Version(1), transfers)


def test_a_receiver_that_stops_in_the_middle_holds_up_neither_a_publish_nor_other_receivers(
    peers: list[Peer],
) -> None:
    sender, stuck = Peer("sender"), Peer("receiver")
    peers += [sender, stuck]
    location = sender.hear()
    sender.ask("publish 1")
    assert stuck.ask(f"pull {location}") == "pulled 1"
    stuck.tell("stop in the middle")
    assert stuck.hear() == "asked"  # its slices are asked for, and nobody takes them
    for version in (2, 3, 4):
        assert sender.ask(f"publish {version}") == f"published {version}"
        source = CollectiveSource(location, CPU)
        transfers = [Transfer(slice=one, sender="training rank 0", receiver="r") for one in _slices(source)]
        assert source.fetch(Version(version), transfers).version == version
        source.close()
    stuck.kill()
    assert sender.ask("publish 5") == "published 5"


def test_a_publish_in_another_thread_never_tears_a_pull(trainer: Trainer) -> None:
    [receiver] = engine(1)
    puller = Puller([receiver], open_source)
    trainer.publish(1)
    is_over = threading.Event()

    def publish() -> None:
        for version in range(2, 60):
            trainer.publish(version)
        is_over.set()

    thread = threading.Thread(target=publish)
    thread.start()
    seen = []
    while not is_over.is_set():
        version, [pulled] = puller.pull(trainer.address, Version(1))
        assert_right(pulled, receiver, values(version))
        seen.append(version)
    thread.join()
    assert seen == sorted(seen)


def _slices(source: CollectiveSource) -> list[Slice]:
    return [Slice(parameter.name, parameter.box) for parameter in source.parameters()]
