"""The program in a response."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*```[ \t]*([A-Za-z0-9+_.-]*)[^\n]*\n", re.MULTILINE)
_END = re.compile(r"^[ \t]*```", re.MULTILINE)
_PYTHON = ("python", "python3", "py")
_END_OF_THOUGHT = "</think>"


def program_in(response: str) -> str:
    """The last code block marked as Python; else the last block without a mark; else the whole text.

    Only text after the last `</think>` counts, if there is one. A block that was cut off ends with the text.
    """
    text = response.rpartition(_END_OF_THOUGHT)[2]
    marked, unmarked = [], []
    position = 0
    while (fence := _FENCE.search(text, position)) is not None:
        end = _END.search(text, fence.end())
        block = text[fence.end() : end.start() if end is not None else len(text)]
        mark = fence[1].lower()
        if mark in _PYTHON:
            marked.append(block)
        elif not mark:
            unmarked.append(block)
        position = end.end() if end is not None else len(text)
    blocks = marked or unmarked
    return blocks[-1] if blocks else text
