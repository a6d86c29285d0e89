"""In deterministic mode tokens and log-probs are equal bit by bit, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PretrainedConfig, Qwen3Config

from engines.histories import interrupted_at, random_history
from engines.rollouts import VOCAB_SIZE, generate, make_request, random_prompt, save_random_model, small_llama
from tailrace.core.ids import ResponseId
from tailrace.engines.contract import Request
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits
from tailrace.store.segment import ResponsePayload

# Sizes that are no multiples of anything, so that vectorised loops have tails.
ODD_QWEN3 = Qwen3Config(
    vocab_size=VOCAB_SIZE + 5,
    hidden_size=38,
    intermediate_size=51,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=512,
    initializer_range=0.3,
)
MODELS = {"llama": small_llama(hidden_size=64, intermediate_size=160), "odd qwen3": ODD_QWEN3}
MAX_RUNNING = 13


@pytest.fixture(params=MODELS, scope="module")
def model_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    config: PretrainedConfig = MODELS[request.param]
    save_random_model(directory, config)
    return directory


def engine_maker(directory: Path) -> Callable[..., NativeEngine]:
    def make(*, kv_tokens: int | None = None, prefill_chunk: int = 512, **_: int) -> NativeEngine:
        # Only the number of slots is part of the promise: it is the shape of every matrix product.
        limits = EngineLimits(max_running=MAX_RUNNING, max_length=200, kv_tokens=kv_tokens, prefill_chunk=prefill_chunk)
        return NativeEngine(directory, seed=5, limits=limits, deterministic=True)

    return make


def mixed_requests() -> list[Request]:
    return [
        make_request(
            index,
            member,
            prompt=random_prompt(index, [1, 9, 63, 64, 65, 100][index]),
            budget=[70, 20, 10, 5, 30, 40][index],
            temperature=[1.0, 0.7][member],
            top_p=0.9 if index == 1 else 1.0,
        )
        for index in range(6)
        for member in range(2)
    ]


def assert_bit_equal(found: dict[ResponseId, ResponsePayload], expected: dict[ResponseId, ResponsePayload]) -> None:
    assert found.keys() == expected.keys()
    for response_id, response in expected.items():
        np.testing.assert_array_equal(found[response_id].tokens, response.tokens)
        np.testing.assert_array_equal(found[response_id].logprobs, response.logprobs)
        np.testing.assert_array_equal(found[response_id].behaviour_logprobs, response.behaviour_logprobs)


@pytest.fixture
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.mark.parametrize("num_threads", [1, 2], indirect=True)
def test_any_history_gives_the_same_bits(model_directory: Path, num_threads: int) -> None:
    make = engine_maker(model_directory)
    engine, alone = make(), {}
    for request in mixed_requests():
        alone |= generate(engine, [request])
    assert_bit_equal(random_history(make, mixed_requests(), 0)[0], alone)
    found, num_disturbances = random_history(make, mixed_requests(), 1, kv_tokens=400, interrupt_probability=0.04)
    assert num_disturbances > 5
    assert_bit_equal(found, alone)


CUTS = st.lists(st.lists(st.integers(0, 39), max_size=4, unique=True), min_size=6, max_size=6)
"""How many tokens each of six responses has when it is interrupted."""


@pytest.fixture(scope="module")
def uninterrupted(model_directory: Path) -> tuple[NativeEngine, list[Request], dict[ResponseId, ResponsePayload]]:
    engine = engine_maker(model_directory)()
    prompts = [random_prompt(index, length) for index, length in enumerate((1, 20, 64))]
    requests = [
        make_request(index, member, prompt=prompt, budget=40, temperature=[1.0, 0.7][member])
        for index, prompt in enumerate(prompts)
        for member in range(2)
    ]
    return engine, requests, generate(engine, requests)


@given(cuts=CUTS)
@settings(max_examples=8, deadline=None)
def test_interrupt_and_resume_with_unchanged_weights_equals_uninterrupted_generation_at_any_cuts(
    uninterrupted: tuple[NativeEngine, list[Request], dict[ResponseId, ResponsePayload]], cuts: list[list[int]]
) -> None:
    engine, requests, whole = uninterrupted
    wanted = {request.response_id: own for request, own in zip(requests, cuts, strict=True)}
    found, num_interrupts = interrupted_at(engine, requests, wanted)
    assert num_interrupts == sum(len(own) for own in cuts)
    assert_bit_equal(found, whole)
