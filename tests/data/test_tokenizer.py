from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import is_plain, load_tokenizer

TEXTS = ["1+2=", "12*(3-4)= 5", "", "no such letters", "####7</s>"]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve_model("tiny-arith"), tmp_path / "model"))


def configure(model: Path, **settings: object) -> None:
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize("name", ["TokenizersBackend", "PreTrainedTokenizerFast"])
def test_the_short_way_gives_what_transformers_own_door_gives(model: Path, name: str) -> None:
    configure(model, tokenizer_class=name, chat_template=TEMPLATE)
    found, expected = load_tokenizer(model), AutoTokenizer.from_pretrained(model)
    assert is_plain(model)
    assert found(TEXTS)["input_ids"] == expected(TEXTS)["input_ids"]
    assert found(TEXTS, add_special_tokens=False)["input_ids"] == expected(TEXTS, add_special_tokens=False)["input_ids"]
    for tokens in found(TEXTS)["input_ids"]:
        assert found.decode(tokens) == expected.decode(tokens)
    assert (found.eos_token_id, found.pad_token_id) == (expected.eos_token_id, expected.pad_token_id)
    assert found.chat_template == expected.chat_template == TEMPLATE


@pytest.mark.parametrize("settings", [{"tokenizer_class": "GPT2Tokenizer"}, {"auto_map": {"AutoTokenizer": "x.Y"}}])
def test_a_model_with_a_tokenizer_class_of_its_own_goes_through_that_door(
    model: Path, settings: dict[str, object]
) -> None:
    configure(model, **settings)
    assert not is_plain(model)


def test_a_model_without_tokenizer_files_is_not_guessed_at(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert not is_plain(model)
    with pytest.raises((OSError, ValueError)):
        load_tokenizer(model)
