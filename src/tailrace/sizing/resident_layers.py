"""How many layers of an offloaded model stay on the device, and how long a pass takes then. Arithmetic only.

A pass computes one sequence after the other, layer by layer (``judge/decoder.py``). So it needs, beside weights:

* what a layer needs while it computes the longest sequence (*working* bytes), and
* the states of all tokens of the pass (*held* bytes).

As many layers stay as fit the budget: a resident layer needs no copy, and memory that is left over helps nobody.
Offloaded layers need two buffers. To offload one or two layers therefore saves nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.offload.residency import resident_places
from tailrace.offload.turns import NUM_BUFFERS, pass_seconds

PACK_TOKENS = 8192
"""Most tokens of sequences that lie side by side: enough to keep a GPU busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPoint:
    """What was measured for sequences of one length."""

    length: int
    working_bytes: int
    """Bytes of one sequence beside its held bytes, at the worst moment of a pass."""
    layer_s: float
    """Seconds in which one layer computes one sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadProfile:
    """A model on a device, as measured once."""

    num_layers: int
    layer_bytes: int
    outside_bytes: int
    """Weights outside the layers: embeddings and heads."""
    held_bytes: int
    """Bytes of one token of a pass between two layers."""
    copy_s: float
    """Seconds to copy one layer to the device."""
    points: tuple[LengthPoint, ...]
    """One or more, shortest first."""

    def __post_init__(self) -> None:
        lengths = [point.length for point in self.points]
        if not lengths or lengths != sorted(set(lengths)) or lengths[0] < 1:
            raise ValueError(f"a profile needs lengths above 0 that increase, got {lengths}")

    def working_bytes(self, length: int) -> int:
        """Between two lengths on a straight line, beyond the last one as well; at least those of the first."""
        points = self.points
        if length <= points[0].length:
            return points[0].working_bytes
        if len(points) == 1:
            return -(-points[0].working_bytes * length // points[0].length)
        after = min(bisect_left([point.length for point in points], length), len(points) - 1)
        one, other = points[after - 1], points[after]
        rise = (other.working_bytes - one.working_bytes) * (length - one.length)
        return one.working_bytes - (-rise // (other.length - one.length))

    def layer_s(self, length: int) -> float:
        """Between two lengths on a straight line. Beyond the last one attention counts alone: with the square."""
        points = self.points
        if length <= points[0].length:
            return points[0].layer_s
        last = points[-1]
        if length >= last.length:
            return last.layer_s * (length / last.length) ** 2
        after = bisect_left([point.length for point in points], length)
        one, other = points[after - 1], points[after]
        return one.layer_s + (other.layer_s - one.layer_s) * (length - one.length) / (other.length - one.length)

    def device_bytes(self, num_resident: int, *, longest: int, num_tokens: int) -> int:
        """Bytes of a pass at its worst moment. ``num_tokens``: of all sequences; ``longest``: of the longest one."""
        num_layers = self.num_layers if num_resident == self.num_layers else num_resident + NUM_BUFFERS
        weights = self.outside_bytes + num_layers * self.layer_bytes
        return weights + self.working_bytes(longest) + num_tokens * self.held_bytes


def longest_pack(longest: int, num_tokens: int, *, is_packed: bool) -> int:
    """Most tokens that a pack of such a pass may have."""
    return max(longest, min(num_tokens, PACK_TOKENS)) if is_packed else longest


def resident_layers(profile: OffloadProfile, *, budget_bytes: int, longest: int, num_tokens: int) -> int | None:
    """Most layers that can stay on the device during a pass; None if the pass does not even fit without any."""
    everything, least = (
        profile.device_bytes(number, longest=longest, num_tokens=num_tokens) for number in (profile.num_layers, 0)
    )
    if everything <= budget_bytes:
        return profile.num_layers
    if least > budget_bytes:
        return None
    return (budget_bytes - least) // profile.layer_bytes  # at most all but three: more would fit only with all


def predicted_seconds(
    profile: OffloadProfile, lengths: Sequence[int], num_resident: int, *, is_overlapped: bool = True
) -> float:
    """Seconds of the layers in one of many passes over sequences of these lengths. Embeddings and heads not counted."""
    layer_s = sum(map(profile.layer_s, lengths))
    places = resident_places(profile.num_layers, num_resident)
    return pass_seconds(places, layer_s=layer_s, copy_s=profile.copy_s, is_overlapped=is_overlapped)
