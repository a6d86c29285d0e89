"""Whether an answer is the expected one. It happens outside the sandbox, on bytes and decoded JSON.

Output is compared line by line, without space at the ends of lines and without empty lines at the end. Two lines that
differ are equal if they have as many words, and each pair of words is equal as text or as numbers: exactly (`1.0` is
`1`), or within `tolerance`, relative or absolute.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal, InvalidOperation

from tailrace.rewards.sandbox.cases import CallCase

_MOST_SURPLUS_BYTES = 1 << 16
_LONGEST_NUMBER = 100


def is_output_right(output: bytes, expected: str, tolerance: float = 0.0) -> bool:
    if len(output) > 2 * len(expected.encode()) + _MOST_SURPLUS_BYTES:
        return False  # spaces at the ends of lines are ignored, but not without limit
    given, wanted = _lines(output.decode("utf-8", "replace")), _lines(expected)
    return len(given) == len(wanted) and all(
        _are_lines_equal(*pair, tolerance) for pair in zip(given, wanted, strict=True)
    )


def is_result_right(result: bytes, case: CallCase, tolerance: float = 0.0) -> bool:
    wanted = [json.dumps(value) for value in (case.value, *case.also)]
    if len(result) > 2 * max(map(len, wanted)) + _MOST_SURPLUS_BYTES:
        return False  # decoding it could take much memory
    try:
        given = json.loads(result)
    except (ValueError, RecursionError):
        return False
    return any(_are_values_equal(given, json.loads(text), tolerance) for text in wanted)


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.strip().split("\n")]
    return [] if lines == [""] else lines


def _are_lines_equal(given: str, wanted: str, tolerance: float) -> bool:
    if given == wanted:
        return True
    given_words, wanted_words = given.split(), wanted.split()
    return len(given_words) == len(wanted_words) and all(
        first == second or _are_words_equal_numbers(first, second, tolerance)
        for first, second in zip(given_words, wanted_words, strict=True)
    )


def _are_words_equal_numbers(given: str, wanted: str, tolerance: float) -> bool:
    if max(len(given), len(wanted)) > _LONGEST_NUMBER:
        return False
    try:
        first, second = Decimal(given), Decimal(wanted)
    except InvalidOperation:
        return False
    if not (first.is_finite() and second.is_finite()):
        return False
    return first == second or (tolerance > 0 and _is_close(float(first), float(second), tolerance))


def _are_values_equal(given: object, wanted: object, tolerance: float) -> bool:
    """Equal as Python says of decoded JSON, so `true` is 1 and 1 is 1.0; or numbers that are close."""
    if given == wanted:
        return True
    if not tolerance:
        return False
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        return _is_close(given, wanted, tolerance)
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(
            _are_values_equal(given[key], wanted[key], tolerance) for key in wanted
        )
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(
            _are_values_equal(*pair, tolerance) for pair in zip(given, wanted, strict=True)
        )
    return False


def _is_close(first: float, second: float, tolerance: float) -> bool:
    try:
        return math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False
