"""A publish that reads weights while the next step computes with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tailrace.core.ids import Version
from tailrace.trainer.trainer import Trainer
from tailrace.weights.address import ChannelAddress
from tailrace.workers.messages import Published
from tailrace.workers.publishing import Publishing

LIMIT_S = 60.0
"""No test waits so long unless it fails."""


class LateSink:
    """Asks for the first weight when it is told to."""

    address = ChannelAddress(kind="test", location="nowhere")

    def __init__(self) -> None:
        self.may_begin, self.has_ended = threading.Event(), threading.Event()
        self.weights: dict[str, Tensor] = {}

    def publish(self, version: Version, weights: Iterable[tuple[str, Tensor]]) -> None:
        assert self.may_begin.wait(LIMIT_S)
        try:
            self.weights = {name: tensor.clone() for name, tensor in weights}
        finally:
            self.has_ended.set()


class Link:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def receive(self, timeout: float | None = None) -> object | None:
        raise AssertionError

    def send(self, message: object) -> None:
        self.messages.append(message)


def publish_beside(
    trainer: Trainer, rank: int, weights: Callable[[], Iterable[tuple[str, Tensor]]], compute: Callable[[], None]
) -> dict[str, Tensor]:
    """Begin a publish, and compute; return what was published.

    All weights are read while the first rank is inside the first layer, whose parameters are whole there, and the
    others have left it and divided its parameters again.
    """
    sink, link = LateSink(), Link()
    publishing = Publishing(link, sink, weights, model="m", device=torch.device("cpu"))
    layer = trainer.model.model.layers[0]

    def pause(*_: object) -> None:
        hook.remove()
        sink.may_begin.set()
        assert sink.has_ended.wait(LIMIT_S)

    hook = (layer.input_layernorm if rank == 0 else layer).register_forward_hook(pause)
    publishing.begin(trainer.version)
    compute()
    publishing.finish()
    [answer] = link.messages
    assert isinstance(answer, Published), answer
    return sink.weights
