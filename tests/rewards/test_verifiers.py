from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.config.reward_settings import RewardSettings
from tailrace.rewards.verifiers import BUILT_IN, exact_match, last_number, load_math_verify

PAGE = Path(__file__).parents[2] / "docs" / "data-and-rewards.md"


@pytest.mark.parametrize("name", BUILT_IN)
def test_help_and_docs_name_every_built_in_reward(name: str) -> None:
    assert f"`{name}`" in str(RewardSettings.model_fields["functions"].description)
    assert f"| `{name}` |" in PAGE.read_text()


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("The answer is 7.", 7, 1.0),
        ("3 + 4", "7", 0.0),  # an expression is not worked out
        ("3 + 4 = 7", "7", 1.0),
        ("7, because 3 + 4", "7", 0.0),
        ("5 - 12", "-12", 0.0),
        ("5 - 12 = **-7**", "-7", 1.0),
        ("5 - 12 = \N{MINUS SIGN}7", "-7", 1.0),
        ("It costs 1,234.50 dollars", "1234.5", 1.0),
        ("1,234", "234", 0.0),
        ("I do not know", "7", 0.0),
        ("#### 42", "a long way #### 42", 1.0),
    ],
)
def test_last_number_compares_the_last_numbers(response: str, answer: object, score: float) -> None:
    assert last_number(response, answer) == score


def test_an_answer_without_a_number_is_an_error_not_a_wrong_response() -> None:
    with pytest.raises(ValueError, match="has no number"):
        last_number("7", "seven")


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("42", "42", 1.0),
        (" 42\n", "42", 1.0),
        ("6 * 7 is #### 42", "42", 1.0),
        ("#### 41 no, #### 42", "42", 1.0),
        ("#### 42", "so it is 6 * 7\n#### 42", 1.0),
        ("the answer is 42", "42", 0.0),
        ("#### 042", 42, 1.0),
        ("#### +1,042", "1042", 1.0),
        ("#### -0", "0", 1.0),
        ("#### -42", "42", 0.0),
        ("#### 42.0", "42", 0.0),
        ("#### 1,04", "104", 0.0),
        ("#### 1_000", "1000", 0.0),
        ("#### blue", "blue", 1.0),
        ("####", "0", 0.0),
        ("#### " + "9" * 10_000, "0" + "9" * 10_000, 1.0),
    ],
)
def test_exact_match_compares_final_answers_as_text_or_integers(response: str, answer: object, score: float) -> None:
    assert exact_match(response, answer) == score


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (r"thus $x = \frac{1}{2}$", "1/2", 1.0),
        (r"so \boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"the set is $\{2, 1\}$", r"$\{1,2\}$", 1.0),
        ("it is 13", "12", 0.0),
        ("no idea", "12", 0.0),
        ("#### 12", "reasoning\n#### 12", 1.0),
    ],
)
def test_math_verify_compares_mathematics(response: str, answer: str, score: float) -> None:
    assert load_math_verify()(response=response, answer=answer) == score


def test_an_answer_that_math_verify_cannot_read_is_an_error_not_a_wrong_response() -> None:
    with pytest.raises(ValueError, match="cannot read the answer"):
        load_math_verify()(response="12", answer="")
