"""The order of prompts from several weighted sources. Any part of the order holds each source in proportion.

An epoch of the mixture has as many prompts as all sources together. Source `i` gives a fixed number of them, which
follows from its weight (at least one), spread evenly over the epoch. The number of prompts that a source gave before a
cursor (epoch, offset) can therefore be computed, and a cursor survives restarts as two numbers.

A source that must give more prompts than it has starts again in a new order. The epoch of a prompt counts the passes
over its own source, so no (epoch, prompt index) comes twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.data.order import Offer, SourceOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One source of the mixture."""

    indices: tuple[int, ...]
    weight: float | None = None
    """Share of the source, relative to the other weights; None: its number of prompts."""


class MixedOrder:
    """Offers prompts of several sources in a fixed pattern."""

    def __init__(self, shares: Mapping[str, Share], *, seed: int, shuffle: bool) -> None:
        self._orders = [
            SourceOrder(share.indices, source=name, seed=seed, shuffle=shuffle) for name, share in shares.items()
        ]
        self._sizes = [len(share.indices) for share in shares.values()]
        weights = [len(share.indices) if share.weight is None else share.weight for share in shares.values()]
        self._quotas = quotas(weights, sum(self._sizes))
        self._pattern = _spread(self._quotas)
        self.shares = {name: quota / len(self._pattern) for name, quota in zip(shares, self._quotas, strict=True)}
        """The fraction of all prompts that each source gives."""

    def ids(self, epoch: int, offset: int, count: int) -> Offer:
        """The next `count` prompts after the cursor, and the cursor after them."""
        length = len(self._pattern)
        if epoch < 0 or count < 0 or not 0 <= offset < length:
            raise ValueError(
                f"a mixture of {length} prompts has no cursor (epoch {epoch}, offset {offset}) from which to offer "
                f"{count}"
            )
        given = [epoch * quota + self._pattern[:offset].count(n) for n, quota in enumerate(self._quotas)]
        prompts: list[tuple[int, int]] = []
        for position in range(offset, offset + count):
            number = self._pattern[position % length]
            own_epoch, own_offset = divmod(given[number], self._sizes[number])
            prompts += self._orders[number].ids(own_epoch, own_offset, 1).prompts
            given[number] += 1
        further, next_offset = divmod(offset + count, length)
        return Offer(prompts=tuple(prompts), next_epoch=epoch + further, next_offset=next_offset)


def quotas(weights: list[float], total: int) -> list[int]:
    """Divide `total` by weight, with at least one for each. Rounding follows the largest remainders."""
    exact = [total * weight / sum(weights) for weight in weights]
    counts = [max(1, int(value)) for value in exact]
    by_need = sorted(range(len(weights)), key=lambda n: (counts[n] - exact[n], n))
    for n in by_need[: max(0, total - sum(counts))]:
        counts[n] += 1
    while sum(counts) > total:  # the ones that were rounded up to one took too much
        counts[counts.index(max(counts))] -= 1
    return counts


def _spread(counts: list[int]) -> tuple[int, ...]:
    """The index of each source, repeated as often as its count says and spread evenly."""
    places = [((visit + 0.5) / count, number) for number, count in enumerate(counts) for visit in range(count)]
    return tuple(number for _, number in sorted(places))
