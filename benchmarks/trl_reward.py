"""Rewards of the comparison with TRL, in TRL's signature: tailrace and TRL call the very same functions."""

from __future__ import annotations

import re
from typing import Any

from tailrace.rewards.verifiers import exact_match


def arithmetic(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The quickstart's reward: what stands after ``####`` is the answer."""
    return [float(exact_match(text, str(wanted))) for text, wanted in zip(completions, answer, strict=True)]


def plain_words(completions: list[str], **_: Any) -> list[float]:
    """The share of words of at most five letters: graded, so that no two responses of a group are likely to tie."""
    words = [re.findall(r"[A-Za-z]+", text) for text in completions]
    return [sum(len(word) <= 5 for word in found) / max(1, len(found)) for found in words]
