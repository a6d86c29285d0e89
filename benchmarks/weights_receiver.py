"""One rank of an engine, without the engine: a worker that pulls its slices and says what it fetched."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from tailrace.core.ids import Version
from tailrace.weights.address import ChannelAddress
from tailrace.weights.puller import Puller
from tailrace.weights.sharding.table import Holding
from tailrace.weights.sharding.transfer_plan import Links, plan_transfers
from tailrace.weights.sources import open_source
from tailrace.workers.link import Link
from tailrace.workers.messages import Pull


@dataclass(frozen=True, kw_only=True)
class ReceiverInit:
    holding: Holding
    checkpoint: Path
    """The weights that are published."""


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """What one pull brought."""

    version: Version
    num_bytes: int
    seconds: float
    is_right: bool
    """Whether every element is that of the checkpoint."""
    by_sender: dict[str, int]
    """Bytes that the transfer plan assigns to each sender."""


def serve(link: Link, init: ReceiverInit) -> None:
    torch.set_num_threads(1)
    puller, expected = Puller([init.holding], open_source), _expected(init)
    while True:
        message = link.receive(None)
        assert isinstance(message, Pull), message
        start = time.monotonic()
        version, [pulled] = puller.pull(message.channel, message.version)
        seconds = time.monotonic() - start
        is_right = len(pulled) == len(expected) and all(torch.equal(pulled[name], expected[name]) for name in expected)
        link.send(
            Fetch(
                version=version,
                num_bytes=puller.num_bytes,
                seconds=seconds,
                is_right=is_right,
                by_sender=planned_bytes(message.channel, init.holding),
            )
        )


def _expected(init: ReceiverInit) -> dict[str, torch.Tensor]:
    whole = load_file(init.checkpoint / "model.safetensors")
    boxes = {piece.parameter: piece.box for piece in init.holding.pieces}
    return {name: whole[name][tuple(slice(*side) for side in box)] for name, box in boxes.items()}


def planned_bytes(address: ChannelAddress, holding: Holding) -> dict[str, int]:
    source = open_source(address)
    parameters = {parameter.name: parameter for parameter in source.parameters()}
    total: Counter[str] = Counter()
    for transfer in plan_transfers(parameters.values(), source.senders(), [holding], Links()):
        total[transfer.sender] += parameters[transfer.slice.parameter].num_bytes(transfer.slice.box)
    source.close()
    return dict(total)
