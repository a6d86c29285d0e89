"""A reward function that misbehaves in five ways, by the last digit of the answer. Loaded by path in tests."""

from __future__ import annotations

import os
import time


def score(response: str, answer: str) -> float:
    match int(answer) % 10:
        case 0:
            time.sleep(3600)
        case 1:
            os._exit(3)
        case 2:
            hoard = [bytearray(64 << 20) for _ in range(1000)]
            return float(len(hoard))
        case 3:
            return float("nan")
        case 4:
            raise KeyError("no such thing")
    return float(response.endswith(answer))
