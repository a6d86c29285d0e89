from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.counting_tokenizer import TEMPLATE, tokenizer
from tailrace.config.data_settings import DataSettings
from tailrace.data.prompts import PromptSet


def write(directory: Path, *rows: object) -> str:
    path = directory / "prompts.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def load(path: str, *, template: str | None = None, max_prompts: int | None = None, **settings: object) -> PromptSet:
    values = DataSettings.model_validate(settings)
    return PromptSet.load("train", path, tokenizer(chat_template=template), values, max_prompts=max_prompts)


def test_strings_are_tokenised_as_the_tokenizer_does_by_default_and_columns_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "abc", "answer": "1", "level": 3}, "", {"prompt": "b", "answer": "2"})
    prompts = load(path)
    assert prompts.indices == (0, 1)
    assert len(prompts) == 2
    assert prompts[0].tokens.tolist() == [0, 1, 2, 3]
    assert prompts[0].tokens.dtype == "int32"
    assert prompts[0].row == {"prompt": "abc", "answer": "1", "level": 3}
    assert prompts.columns == ("prompt", "answer")
    assert prompts.num_filtered == 0


def test_chat_lists_are_rendered_by_the_template_without_further_special_tokens(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    prompts = load(write(tmp_path, {"prompt": chat}, {"prompt": "plain"}), template=TEMPLATE)
    assert prompts[0].text == "<user>hi<assistant>"
    assert len(prompts[0].tokens) == len(prompts[0].text)
    assert prompts[0].row["prompt"] == chat
    assert prompts[1].text == "plain"
    assert len(prompts[1].tokens) == len("plain") + 1


def test_strings_become_user_messages_when_asked_for(tmp_path: Path) -> None:
    prompts = load(write(tmp_path, {"prompt": "hi"}), template=TEMPLATE, apply_chat_template=True)
    assert prompts[0].text == "<user>hi<assistant>"


def test_long_prompts_are_left_out_and_counted_and_the_others_keep_their_index(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "abcdef"}, {"prompt": "ab"}, {"prompt": "abcd"}, {"prompt": "abc"})
    prompts = load(path, max_prompt_length=4)
    assert prompts.indices == (1, 3)
    assert prompts.num_filtered == 2


def test_only_the_first_usable_prompts_are_taken_where_a_maximum_is_given(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "abcdef"}, *({"prompt": "a"} for _ in range(2000)))
    prompts = load(path, max_prompt_length=3, max_prompts=2)
    assert prompts.indices == (1, 2)
    assert prompts.num_filtered == 1


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("{not json", "not a JSON object"),
        ("[1]", "expected a JSON object, got list"),
        ({"question": "?", "answer": "1"}, "there is no 'prompt'; the row has question, answer"),
        ({"prompt": 7}, "must be a string or a list of messages"),
        ({"prompt": []}, "must be a string or a list of messages"),
        ({"prompt": [{"content": "x"}]}, "must be a string or a list of messages"),
        ({"prompt": [{"role": "user", "content": "x"}]}, "tokenizer has none"),
    ],
)
def test_a_mistake_in_a_file_names_file_and_line(tmp_path: Path, row: object, sentence: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, "", row)
    with pytest.raises(ValueError, match=sentence) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")


def test_a_chat_list_is_refused_where_templates_are_switched_off(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": [{"role": "user", "content": "x"}]})
    with pytest.raises(ValueError, match="apply_chat_template is false"):
        load(path, template=TEMPLATE, apply_chat_template=False)


def test_a_template_that_raises_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": [{"role": "user", "content": "x"}]})
    with pytest.raises(ValueError, match="line 1: the chat template refuses the prompt: only systems"):
        load(path, template="{{ raise_exception('only systems') }}")


def test_a_file_without_a_usable_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no prompts"):
        load(write(tmp_path))
    with pytest.raises(ValueError, match=r"all 1 prompts are longer than data\.max_prompt_length = 2"):
        load(write(tmp_path, {"prompt": "abc"}), max_prompt_length=2)


def test_missing_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no prompt file 'nowhere\.jsonl'"):
        load("nowhere.jsonl")
    (tmp_path / "data.parquet").write_bytes(b"PAR1\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a parquet file that can be read"):
        load(str(tmp_path / "data.parquet"))
    (tmp_path / "data.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8 text"):
        load(str(tmp_path / "data.jsonl"))
    with pytest.raises(ValueError, match="there are arith-code, arith-heldout, arith-train"):
        load("builtin:nothing")


def test_a_fingerprint_changes_with_prompts_and_with_what_rewards_see_of_them(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "answer": "1"}, {"prompt": "cd", "answer": "2"}]
    variants = [
        rows,
        rows[::-1],
        [rows[0], {"prompt": "cd", "answer": "3"}],
        [rows[0], {"prompt": "ce", "answer": "2"}],
    ]
    prints = [load(write(tmp_path, *variant)).fingerprint() for variant in variants]
    assert len(set(prints)) == 4
    assert load(write(tmp_path, *rows)).fingerprint() == prints[0]


def test_built_in_prompts_load_and_the_held_out_ones_are_disjoint() -> None:
    train, held_out = load("builtin:arith-train"), load("builtin:arith-heldout")
    assert {"prompt", "answer"} <= set(train.columns)
    assert not {p.text for p in train.prompts.values()} & {p.text for p in held_out.prompts.values()}


def test_a_directory_that_is_no_saved_dataset_is_refused_with_the_other_way_to_write_it(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(ValueError, match=rf"a directory of data files is written hf:{tmp_path}"):
        load(str(tmp_path))


def test_a_missing_file_that_looks_like_a_hub_id_says_how_to_write_one() -> None:
    with pytest.raises(ValueError, match=r"no prompt file 'openai/gsm8k'; a dataset .* is written hf:openai/gsm8k"):
        load("openai/gsm8k")
