"""A prompt as the model sees it, for people to read: clipped in the middle, one line of text per line."""

from __future__ import annotations

_MOST_CHARACTERS = 1200
_MOST_LINES = 24


def prompt_lines(text: str, *, num_tokens: int, source: str, number: int) -> list[str]:
    """``text``: all tokens of the prompt, special ones included. ``number``: the prompt's index."""
    title = f"prompt: number {number} of '{source}' as the model sees it, {num_tokens:,} tokens"
    return [f"{title}:", *(f"  | {line}" for line in _clipped_lines(_clipped(text).split("\n")))]


def _clipped(text: str) -> str:
    """The end of a prompt says who speaks next, so it is the middle that is left out."""
    if len(text) <= _MOST_CHARACTERS:
        return _printable(text)
    head, tail = _MOST_CHARACTERS * 2 // 3, _MOST_CHARACTERS // 3
    left_out = len(text) - head - tail
    return f"{_printable(text[:head])}\n[... {left_out:,} characters ...]\n{_printable(text[-tail:])}"


def _clipped_lines(lines: list[str]) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    head, tail = _MOST_LINES * 2 // 3, _MOST_LINES // 3
    return [*lines[:head], f"[... {len(lines) - head - tail:,} lines ...]", *lines[-tail:]]


def _printable(text: str) -> str:
    """Control characters, which a terminal would obey, are written out."""
    return "".join(each if each.isprintable() or each == "\n" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
