"""A reward that differs between the responses of a group, whatever they say, so every response is trained."""

from __future__ import annotations

from zlib import crc32


def drawn(response: str) -> float:
    return crc32(response.encode()) % 1000 / 1000
