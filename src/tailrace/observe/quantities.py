"""Numbers with their nouns, as people write them."""

from __future__ import annotations


def quantity(count: int, noun: str) -> str:
    """The number and the noun, in the plural unless the number is 1. For nouns that take an s."""
    return f"{count} {noun}{'s' * (count != 1)}"
