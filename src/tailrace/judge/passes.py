"""Which of the sequences that wait are computed together: the oldest, and those behind it as far as they fit.

They are taken in the order of arrival, so that none waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tailrace.sizing.resident_layers import PACK_TOKENS

MAX_TOKENS = 65_536
"""Most tokens of a pass with several sequences. Of each token the state between two layers is kept (7 kB in a 7B
model), and with that many tokens a layer computes longer than its copy takes."""

Fits = Callable[[int, int], bool]
"""Whether a pass fits the device, by the length of its longest sequence and the number of its tokens."""


def packs(lengths: Sequence[int], *, is_packed: bool) -> list[range]:
    """Which sequences are computed together, by number: those that follow one another, up to ``PACK_TOKENS``."""
    found: list[range] = []
    total = 0
    for number, length in enumerate(lengths):
        total += length
        if found and is_packed and total <= PACK_TOKENS:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
            total = length
    return found


def next_pass(lengths: Iterable[int], fits: Fits, *, max_tokens: int = MAX_TOKENS) -> int:
    """How many of the sequences, from the first, make the next pass: at least one, if there are any."""
    longest = total = count = 0
    for length in lengths:
        longest, total = max(longest, length), total + length
        if count and (total > max_tokens or not fits(longest, total)):
            break
        count += 1
    return count
