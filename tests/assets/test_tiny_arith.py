"""The shipped model and its prompts are what `scripts/make_tiny_arith.py` and `docs/tiny-arith.md` say they are."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "src" / "tailrace" / "assets"
MODEL = ASSETS / "tiny-arith"
SPLITS = {"arith-train": ("train", 4000), "arith-heldout": ("heldout", 2000)}


@pytest.fixture(scope="module")
def task() -> Iterator[ModuleType]:
    """`scripts/arith_task.py`, which is no package."""
    spec = importlib.util.spec_from_file_location("arith_task", ROOT / "scripts" / "arith_task.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["arith_task"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["arith_task"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(MODEL)


def rows_of(name: str) -> list[dict[str, Any]]:
    text = (ASSETS / "prompts" / f"{name}.jsonl").read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines()]


def terms_of(prompt: str) -> tuple[int, ...]:
    signed = prompt.removesuffix("=").replace("+", " +").replace("-", " -")
    return tuple(int(term) for term in signed.split())


@pytest.fixture(scope="module")
def sampled(model: Any, tokenizer: Any) -> list[tuple[dict[str, Any], list[int]]]:
    """The first 128 held-out rows, each with the tokens of a response sampled at temperature 1."""
    torch.manual_seed(0)
    rows = sorted(rows_of("arith-heldout")[:128], key=lambda row: row["terms"])
    pairs = []
    for chunk in (rows[:112], rows[112:]):  # the long chains apart: a batch lasts as long as its longest response
        encoded = tokenizer([row["prompt"] for row in chunk], return_tensors="pt", padding=True)
        output = model.generate(**encoded, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=384)
        for row, tokens in zip(chunk, output[:, encoded["input_ids"].shape[1] :].tolist(), strict=True):
            pairs.append((row, [token for token in tokens if token != tokenizer.pad_token_id]))
    return pairs


def test_the_model_is_a_small_llama_in_hugging_face_format(model: Any, tokenizer: Any) -> None:
    assert model.config.model_type == "llama"
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_model_takes_at_most_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in MODEL.iterdir()) <= 6_000_000


@pytest.mark.parametrize("name", list(SPLITS))
def test_the_script_makes_the_prompt_files_byte_for_byte(name: str, task: ModuleType) -> None:
    split, num_rows = SPLITS[name]
    made = task.prompt_file(split, num_rows).encode("ascii")
    assert (ASSETS / "prompts" / f"{name}.jsonl").read_bytes() == made


@pytest.mark.parametrize("name", list(SPLITS))
def test_every_prompt_has_its_right_answer_and_number_of_terms(name: str) -> None:
    for row in rows_of(name):
        terms = terms_of(row["prompt"])
        assert row["answer"] == str(sum(terms))
        assert row["terms"] == len(terms)


@pytest.mark.parametrize("name", list(SPLITS))
def test_prompts_are_distinct_and_heavy_tailed(name: str) -> None:
    rows = rows_of(name)
    assert len({row["prompt"] for row in rows}) == len(rows) == SPLITS[name][1]
    assert median(row["terms"] for row in rows) == 3
    assert max(row["terms"] for row in rows[:256]) >= 30


def test_no_two_splits_share_a_chain_or_a_reordering_of_one(task: ModuleType) -> None:
    rng = random.Random(0)
    chains = {name: {tuple(sorted(terms_of(row["prompt"]))) for row in rows_of(name)} for name in SPLITS}
    chains["pretrain"] = {tuple(sorted(task.sample_chain(rng, "pretrain").terms)) for _ in range(20_000)}
    assert chains["arith-train"].isdisjoint(chains["arith-heldout"])
    assert chains["pretrain"].isdisjoint(chains["arith-train"] | chains["arith-heldout"])


def test_the_split_of_a_chain_does_not_depend_on_the_order_of_its_terms(task: ModuleType) -> None:
    rng = random.Random(1)
    for _ in range(200):
        chain = task.sample_chain(rng, rng.choice(("pretrain", "train", "heldout")))
        terms = list(chain.terms)
        rng.shuffle(terms)
        assert task.Chain(terms=tuple(terms)).split == chain.split


def test_a_worked_response_without_slips_is_right_and_a_slip_makes_it_wrong(task: ModuleType) -> None:
    rng = random.Random(2)
    chain = task.Chain(terms=(17, 8, -5))
    assert chain.prompt == "17+8-5="
    assert task.worked_response(chain, rng, 0.0) == "17+8=25-5=20#### 20"
    two_terms = task.Chain(terms=(17, 8))
    assert task.worked_response(two_terms, rng, 1.0).rpartition("#### ")[2] != "25"


def test_a_prompt_is_tokenized_with_one_start_token_and_one_token_per_character(tokenizer: Any) -> None:
    ids = tokenizer("17+8-5=").input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.convert_ids_to_tokens(ids[1:]) == list("17+8-5=")
    assert tokenizer.convert_ids_to_tokens(tokenizer("#### 20", add_special_tokens=False).input_ids) == ["####", *" 20"]


def test_encoding_what_was_decoded_gives_the_same_tokens(tokenizer: Any, task: ModuleType) -> None:
    rng = random.Random(3)
    for _ in range(200):
        chain = task.sample_chain(rng, "pretrain")
        text = chain.prompt + task.worked_response(chain, rng, 0.1)
        ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        assert tokenizer.decode(ids) == f"<s>{text}</s>"
        assert tokenizer(tokenizer.decode(ids), add_special_tokens=False).input_ids == ids
        assert tokenizer(tokenizer.decode(ids, skip_special_tokens=True)).input_ids == ids[:-1]


def test_before_training_about_half_of_the_answers_are_right_and_nearly_all_parse(sampled: Any, tokenizer: Any) -> None:
    texts = [(row["answer"], tokenizer.decode(tokens, skip_special_tokens=True)) for row, tokens in sampled]
    answers = [(answer, text.rpartition("####")[2].strip()) for answer, text in texts if "####" in text]
    assert sum(given.isdigit() for _, given in answers) / len(sampled) >= 0.95
    assert 0.35 <= sum(given == answer for answer, given in answers) / len(sampled) <= 0.65


def test_before_training_the_longest_response_is_ten_times_the_median(sampled: Any) -> None:
    lengths = [len(tokens) for _, tokens in sampled]
    assert max(lengths) >= 10 * median(lengths)
