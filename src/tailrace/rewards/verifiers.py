"""The built-in rewards: 1.0 for a right answer, 0.0 for a wrong one; a task's own scorer may also say in between."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from tailrace.rewards.sandbox.code_tests import load_code_tests

ANSWER_MARK = "####"
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_INTEGER = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)")
_MINUS = "\N{MINUS SIGN}"
_NUMBER = re.compile(r"(?:(?<![0-9a-zA-Z_).])-)?(?<![0-9.])(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
"""A number in running text. A minus sign belongs to it unless something stands before it that it is subtracted from."""


def exact_match(response: str, answer: object) -> float:
    """Whether the final answers are equal, as text or as integers (`1,000` is `1000`).

    A final answer is what follows the last `####`, or the whole text where there is none, without space around it.
    """
    given, expected = _final_answer(response), _final_answer(str(answer))
    if given == expected:
        return 1.0
    given_number, expected_number = _as_integer(given), _as_integer(expected)
    return float(given_number is not None and given_number == expected_number)


def last_number(response: str, answer: object) -> float:
    """Whether the last number of the response equals the last number of the answer.

    An expression is not worked out: the last number of `3 + 4` is 4.
    """
    given, expected = (_NUMBER.findall(text.replace(_MINUS, "-")) for text in (response, str(answer)))
    if not expected:
        raise ValueError(f"the answer {answer!r} has no number")
    return float(bool(given) and _as_decimal(given[-1]) == _as_decimal(expected[-1]))


def load_math_verify() -> Callable[..., object]:
    """The math-verify package as a reward. It is imported here, so that no response pays for the import."""
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise ValueError(
            f"the reward 'math_verify' needs the package math-verify ({error}): pip install 'tailrace[math]'"
        ) from error

    def math_verify(response: str, answer: object) -> float:
        """Whether the last mathematical expression of the response equals the answer."""
        # The package's own time limits use signals; ours kill the process, which also works in C code.
        expected = parse(_as_latex(str(answer)), parsing_timeout=None)
        if not expected:
            raise ValueError(f"math-verify cannot read the answer {answer!r}")
        return float(verify(expected, parse(response, parsing_timeout=None), timeout_seconds=None))

    return math_verify


def load_reasoning_gym() -> Callable[..., object]:
    """The scorers of reasoning-gym, each for the tasks that were generated with it."""
    try:
        from reasoning_gym import get_score_answer_fn
    except ImportError as error:
        raise ValueError("the reward 'reasoning_gym' needs reasoning-gym: pip install 'tailrace[data]'") from error
    scorers: dict[str, Callable[..., float]] = {}

    def reasoning_gym(response: str, prompt: object, answer: object, metadata: Mapping[str, object]) -> float:
        """The score of the final answer: what stands in the last `<answer>` tag, or after the last `####`, or all."""
        task = str(metadata["source_dataset"])
        if task not in scorers:
            scorers[task] = get_score_answer_fn(task)
        tagged = _ANSWER_TAG.findall(response)
        given = tagged[-1].strip() if tagged else _final_answer(response)
        entry = {"question": prompt, "answer": answer, "metadata": metadata}
        return float(scorers[task](answer=given, entry=entry))

    return reasoning_gym


BUILT_IN: dict[str, Callable[..., Callable[..., object]]] = {
    "exact_match": lambda: exact_match,
    "last_number": lambda: last_number,
    "math_verify": load_math_verify,
    "reasoning_gym": load_reasoning_gym,
    "code_tests": load_code_tests,
}
"""Each built-in reward by the name that settings use, with a function that loads it. Only a reward process loads it, so
that nobody else imports the package it needs. Options of a reward are parameters of that function."""


def _final_answer(text: str) -> str:
    return text.rpartition(ANSWER_MARK)[2].strip()


def _as_integer(text: str) -> int | str | None:
    """A value that is equal for equal integers: text without leading zeros, so that no length is too much."""
    if _INTEGER.fullmatch(text) is None:
        return None
    digits = text.lstrip("+-").replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if text.startswith("-") and digits != "0" else digits


def _as_decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _as_latex(answer: str) -> str:
    answer = _final_answer(answer)
    return answer if "$" in answer or "\\boxed" in answer else f"\\boxed{{{answer}}}"
