"""Where a training rank publishes weights to, and which weights it gives.

Most channels have one writer: the ranks of the first replica gather one parameter after the other, and the first rank
writes it. In the collective channel each of these ranks is a sender of what it holds, and nothing is gathered; only if
a rank's part is not some rows of each parameter (LoRA, tensor parallelism) is there one sender again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from tailrace.trainer.ranks.ranks import Ranks
from tailrace.trainer.trainer import Trainer
from tailrace.weights.address import ChannelAddress
from tailrace.weights.channel import WeightSink
from tailrace.weights.collective.sink import CollectiveSink
from tailrace.weights.sharding.shards import NotInRows, ParameterPart, local_parts
from tailrace.weights.sinks import Choice, create_sink
from tailrace.weights.slots.channel_files import directories
from tailrace.weights.slots.leftovers import remove_leftovers
from tailrace.weights.slots.two_slots import layout_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    sink: WeightSink | None
    """None: another rank writes the channel."""
    weights: Callable[[], Iterable[tuple[str, Tensor]]]
    """What this rank gives to each publish. The call collects the tensors, so it belongs in the thread that trains;
    another thread may go through the result."""

    @property
    def address(self) -> ChannelAddress | None:
        return None if self.sink is None else self.sink.address


def open_outlet(trainer: Trainer, ranks: Ranks, *, name: str, choice: Choice) -> Outlet:
    """All ranks call it together."""
    if ranks.index == 0:
        for path in remove_leftovers(directories()):
            _say(f"removed {path}, which a killed process left")
    if choice == "collective" and ranks.size > 1 and (outlet := _divided(trainer, ranks)) is not None:
        return outlet
    sink = None
    if ranks.index == 0:
        layout = layout_of(trainer.named_weights(is_whole=False))
        sink = create_sink(name, layout, choice=choice, device=trainer.model.device, say=_say)
    return Outlet(sink=sink, weights=trainer.named_weights if ranks.publishes else lambda: ())


def _divided(trainer: Trainer, ranks: Ranks) -> Outlet | None:
    """Make each rank of the first replica a sender of its part. None if the parts do not make that possible."""
    parts = _parts(trainer)
    if not all(ranks.gather(parts is not None)):
        return None
    assert parts is not None
    sink = CollectiveSink(parts, trainer.model.device) if ranks.publishes else None
    endpoints = [endpoint for endpoint in ranks.gather(None if sink is None else sink.endpoint) if endpoint is not None]
    if sink is None:
        return Outlet(sink=None, weights=lambda: ())
    sink.join(endpoints)
    _say(f"weights are sent by each of {len(endpoints)} ranks through torch.distributed")
    return Outlet(sink=sink, weights=lambda: _local_weights(trainer))


def _parts(trainer: Trainer) -> list[ParameterPart] | None:
    if trainer.adapter is not None:  # merging an adapter needs whole parameters
        return None
    try:
        return [part for part, _ in local_parts(trainer.named_weights(is_whole=False))]
    except NotInRows:
        return None


def _local_weights(trainer: Trainer) -> Iterable[tuple[str, Tensor]]:
    held = trainer.named_weights(is_whole=False)  # collected now, and not by the thread that goes through them
    return ((part.parameter.name, tensor) for part, tensor in local_parts(held))


def _say(line: str) -> None:
    print(line, flush=True)
