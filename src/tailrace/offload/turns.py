"""Which offloaded layer lies in which of two buffers: decided layer by layer, without a device.

While a layer computes, the buffers hold the first two offloaded layers from there on; after the last layer the first
one follows, so that the next pass finds its layers. A layer that computes is never overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NUM_BUFFERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferCopy:
    """A layer that must be copied into a buffer now. All work queued so far may still use the buffer."""

    layer: int
    buffer: int


class Turns:
    """Owns the contents of the buffers."""

    def __init__(self, is_resident: Sequence[bool], *, is_overlapped: bool = True) -> None:
        """``is_overlapped``: layers are copied ahead of their use; False: each when it is needed."""
        self._is_resident = tuple(is_resident)
        self._is_overlapped = is_overlapped
        self._contents: list[int | None] = [None] * NUM_BUFFERS
        self._wanted = [self._find_wanted(layer) for layer in range(len(self._is_resident))]

    def enter(self, layer: int) -> list[BufferCopy]:
        """The copies that must begin before this layer computes. A second call for the same layer gives none."""
        wanted = self._wanted[layer]
        copies = []
        for each in wanted:
            if each not in self._contents:
                buffer = next(place for place, held in enumerate(self._contents) if held not in wanted)
                self._contents[buffer] = each
                copies.append(BufferCopy(layer=each, buffer=buffer))
        return copies

    def forget(self) -> None:
        """The buffers hold nothing of use any more."""
        self._contents = [None] * NUM_BUFFERS

    def buffer_of(self, layer: int) -> int:
        """The buffer of an offloaded layer that was entered."""
        return self._contents.index(layer)

    def _find_wanted(self, layer: int) -> list[int]:
        """What the buffers should hold while this layer computes: what is needed first comes first."""
        if not self._is_overlapped:
            return [] if self._is_resident[layer] else [layer]
        num_layers = len(self._is_resident)
        following = [(layer + step) % num_layers for step in range(num_layers)]
        return [each for each in following if not self._is_resident[each]][:NUM_BUFFERS]


def pass_seconds(
    is_resident: Sequence[bool], *, layer_s: float, copy_s: float, outside_s: float = 0.0, is_overlapped: bool = True
) -> float:
    """Seconds of one of many passes that follow one another.

    ``layer_s``: computation of a layer; ``copy_s``: copy of a layer; ``outside_s``: what a pass computes beside layers.
    """
    turns = Turns(is_resident, is_overlapped=is_overlapped)
    computed_until = copied_until = 0.0
    arrival: dict[int, float] = {}
    ends = []
    # Copies settle into a rhythm within a pass or two. The last passes are taken, and their mean.
    for _ in range(_NUM_PASSES):
        for layer, stays in enumerate(is_resident):
            for copy in turns.enter(layer):
                copied_until = max(copied_until, computed_until) + copy_s
                arrival[copy.layer] = copied_until
            start = computed_until if stays else max(computed_until, arrival[layer])
            computed_until = start + layer_s
        computed_until += outside_s
        ends.append(computed_until)
    return (ends[-1] - ends[_NUM_PASSES // 2]) / (_NUM_PASSES - 1 - _NUM_PASSES // 2)


_NUM_PASSES = 10
