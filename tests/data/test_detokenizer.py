"""Texts made without Transformers are the texts that Transformers makes."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import detokenizer, load_tokenizer


class Shouting(PreTrainedTokenizerFast):
    def _decode(self, *args: object, **kwargs: object) -> str:
        return super()._decode(*args, **kwargs).upper()


class Shortening(PreTrainedTokenizerFast):
    def decode(self, *args: object, **kwargs: object) -> str:
        return super().decode(*args, **kwargs)[:3]


def byte_tokenizer(**settings: object) -> PreTrainedTokenizerFast:
    """One token for each byte, as in most language models; token 256 is special in Transformers only."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", **settings)


def word_tokenizer(cls: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast, **settings: object):
    backend = Tokenizer(models.WordLevel({"yes": 0, ",": 1, ".": 2, "no": 3}, unk_token="no"))
    return cls(tokenizer_object=backend, eos_token="</s>", **settings)


def assert_same_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    value = detokenizer(tokenizer)
    assert value is not None
    decode = pickle.loads(pickle.dumps(value)).load()
    source = random.Random(0)
    for length in (0, 1, 2, 50, 500):
        tokens = tuple(source.randrange(len(tokenizer) + 3) for _ in range(length))
        assert decode(tokens) == tokenizer.decode(list(tokens), skip_special_tokens=True)


def test_a_models_texts_are_the_same() -> None:
    assert_same_texts(load_tokenizer(resolve_model("tiny-arith")))


@pytest.mark.parametrize("cleans_up", [False, True])
def test_bytes_that_are_no_letters_and_special_tokens_give_the_same_texts(cleans_up: bool) -> None:
    assert_same_texts(byte_tokenizer(clean_up_tokenization_spaces=cleans_up))


def test_words_give_the_same_texts() -> None:
    assert_same_texts(word_tokenizer())


def test_tokens_that_only_the_tokenizers_settings_call_special_are_left_out(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert_same_texts(tokenizer)
    value = detokenizer(tokenizer)
    assert value is not None
    assert value.load()([33, tokenizer.eos_token_id]) == tokenizer.decode([33])


@pytest.mark.parametrize(
    "tokenizer",
    [
        word_tokenizer(Shouting),
        word_tokenizer(Shortening),
        word_tokenizer(clean_up_tokenization_spaces=True),
        byte_tokenizer(
            clean_up_tokenization_spaces=True,
            clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
        ),
    ],
)
def test_a_tokenizer_with_steps_of_its_own_is_not_copied(tokenizer: PreTrainedTokenizerFast) -> None:
    assert detokenizer(tokenizer) is None
