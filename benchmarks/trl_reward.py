"""Rewards of the comparison with TRL, in TRL's signature: tailrace and TRL call the very same functions."""

from __future__ import annotations

import re
from typing import Any

from tailrace.rewards.verifiers import exact_match


def arithmetic(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The quickstart's reward: what stands after ``####`` is the answer."""
    return [float(exact_match(text, str(wanted))) for text, wanted in zip(completions, answer, strict=True)]


def names_the_sum(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """The right number occurs in the text. A small chat model manages that now and then."""
    return [float(str(wanted) in re.findall(r"\d+", text)) for text, wanted in zip(completions, answer, strict=True)]
