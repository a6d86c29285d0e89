"""One uniform number per token, a pure function of (seed, response, token position).

The other requests, their order, interruptions and preemptions do not change it.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import ResponseId

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31, 40))


def stream_key(seed: int, response: ResponseId) -> np.uint64:
    """The 64-bit key of a response's random numbers. It is the same on every machine and in every process."""
    digest = blake2b(f"{seed}/{response}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def uniforms(keys: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """A number in [0, 1) for each (key, position), with the 24 bits that float32 resolves."""
    bits = keys + (positions.astype(np.uint64) + np.uint64(1)) * _STEP
    for _ in range(2):
        bits = (bits ^ (bits >> _SHIFTS[0])) * _MIX_1
        bits = (bits ^ (bits >> _SHIFTS[1])) * _MIX_2
        bits = bits ^ (bits >> _SHIFTS[2])
    return (bits >> _SHIFTS[3]).astype(np.float32) * np.float32(2.0**-24)
