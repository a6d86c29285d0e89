from __future__ import annotations

import pytest

from tailrace.data.columns import Columns

CHAT = [{"role": "user", "content": "hi"}]


def found(row: dict[str, object], **choice: str) -> tuple[str, str | None]:
    columns = Columns.detect("rows.jsonl", [row], **choice)
    return columns.prompt, columns.answer


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"prompt": "p", "answer": "a", "question": "q", "solution": "s"}, "prompt", "answer"),
        ({"problem": "p", "solution": "s"}, "problem", "solution"),
        ({"question": "q", "target": "t"}, "question", "target"),
        ({"prompt": "p"}, "prompt", None),
        ({"prompt": None, "question": "q"}, "question", None),
        # Marks of a system go before common names.
        (
            {"prompt": "p", "answer": "long", "reward_model": {"ground_truth": "5"}},
            "prompt",
            "reward_model.ground_truth",
        ),
        ({"prompt": "p", "messages": CHAT, "ground_truth": "5", "tag": "t"}, "messages", "ground_truth"),
        ({"prompt": "p", "messages": CHAT, "ground_truth": "5"}, "prompt", "ground_truth"),
        # A conversation that already holds the reply is no prompt.
        (
            {"messages": [*CHAT, {"role": "assistant", "content": "5"}], "problem": "p", "answer": "5"},
            "problem",
            "answer",
        ),
    ],
)
def test_columns_are_found_by_the_names_that_systems_use(row: dict[str, object], prompt: str, answer: str) -> None:
    assert found(row) == (prompt, answer)


def test_the_users_choice_wins_and_reaches_into_tables() -> None:
    row = {"prompt": "p", "answer": "a", "extra_info": {"question": "q", "answer": "long"}}
    assert found(row, prompt="extra_info.question", answer="extra_info.answer") == (
        "extra_info.question",
        "extra_info.answer",
    )
    columns = Columns.detect("x", [row], prompt="extra_info.question", answer="extra_info.answer")
    assert columns.canonical(row, "x, line 1") == row | {"prompt": "q", "answer": "long"}


def test_no_prompt_column_is_one_sentence_that_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="no prompt column") as caught:
        found({"text": "t", "score": 1})
    assert str(caught.value) == (
        "rows.jsonl has no prompt column; it has text, score; name the right one with data.prompt_column"
    )
    with pytest.raises(ValueError, match=r"rows\.jsonl has no column 'truth' \(answer_column\); it has prompt"):
        found({"prompt": "p"}, answer="truth")
    with pytest.raises(ValueError, match="line 1: there is no 'text'; the row has prompt"):
        Columns.detect("x", [{"prompt": "p"}], prompt="text").canonical({"prompt": "p"}, "x, line 1")


def test_an_answer_that_only_later_rows_have_is_found() -> None:
    columns = Columns.detect("x", [{"prompt": "p"}, {"prompt": "p", "label": "5"}])
    assert columns.answer == "label"
    assert columns.canonical({"prompt": "p"}, "x, line 1") == {"prompt": "p"}


def test_what_a_table_filled_with_nothing_is_not_part_of_a_message() -> None:
    row = {"prompt": [{"role": "user", "content": "hi", "name": None}]}
    assert Columns.detect("x", [row]).canonical(row, "x, line 1")["prompt"] == CHAT


def test_text_that_only_looks_like_a_chat_stays_text() -> None:
    for text in ('[{"x": 1}]', "[{not json"):
        row = {"prompt": text}
        assert Columns.detect("x", [row]).canonical(row, "x, line 1")["prompt"] == text
