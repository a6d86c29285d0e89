"""Engine log-probs are those of a Transformers forward pass over the same tokens, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedModel

from engines.histories import random_history
from engines.rollouts import VOCAB_SIZE, generate, largest_gap, make_request, random_prompt
from tailrace.engines.contract import Request
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import EngineLimits

MakeEngine = Callable[..., NativeEngine]


@pytest.fixture
def make_engine(checkpoint: Path, reference_model: PreTrainedModel) -> MakeEngine:
    def make(*, max_running: int = 8, kv_tokens: int | None = None, prefill_chunk: int = 512) -> NativeEngine:
        limits = EngineLimits(max_running=max_running, max_length=200, kv_tokens=kv_tokens, prefill_chunk=prefill_chunk)
        return NativeEngine(checkpoint, seed=3, limits=limits)

    return make


def mixed_requests() -> list[Request]:
    cuts = [
        {},
        {"temperature": 0.7},
        {"temperature": 1.3},
        {"top_p": 0.8},
        {"top_k": 4, "temperature": 1.3},
        {"min_p": 0.1},
    ]
    return [
        make_request(index, member, budget=25 + 14 * index, stop_token_ids=(7,) if member else (), **cuts[index])
        for index in range(6)
        for member in range(3)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_in_random_compositions(make_engine: MakeEngine, reference_model: PreTrainedModel, seed: int) -> None:
    found, _ = random_history(make_engine, mixed_requests(), seed)
    assert largest_gap(reference_model, mixed_requests(), found) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_over_preemptions(make_engine: MakeEngine, reference_model: PreTrainedModel, seed: int) -> None:
    found, num_preemptions = random_history(make_engine, mixed_requests(), seed, kv_tokens=256, max_running=8)
    assert num_preemptions > 0
    assert largest_gap(reference_model, mixed_requests(), found) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_over_interrupts_and_resumes(make_engine: MakeEngine, reference_model: PreTrainedModel, seed: int) -> None:
    found, num_interrupts = random_history(
        make_engine, mixed_requests(), seed, kv_tokens=400, interrupt_probability=0.03
    )
    assert num_interrupts > 10
    assert largest_gap(reference_model, mixed_requests(), found) < 1e-4


def test_a_group_is_prefilled_once(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=24)
    prompts = [random_prompt(index, 30) for index in range(3)]
    generate(engine, [make_request(index, member, prompt=prompts[index]) for index in range(3) for member in range(8)])
    assert engine.num_prefilled_tokens == 3 * 29


def test_prefill_is_measured_with_its_padding_and_over_a_release(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=4)
    generate(engine, [make_request(index, prompt=random_prompt(index, length)) for index, length in ((0, 30), (1, 10))])
    before = engine.stats().prefill
    assert before is not None
    assert (before.num_batches, before.num_tokens) == (1, 2 * 29)
    assert before.seconds > 0
    engine.release()
    engine.restore()
    assert engine.stats().prefill == before


def test_different_prompts_under_one_group_id_are_not_shared(
    make_engine: MakeEngine, reference_model: PreTrainedModel
) -> None:
    requests = [make_request(0, member, prompt=random_prompt(member, 12)) for member in range(3)]
    found = generate(make_engine(), requests)
    assert largest_gap(reference_model, requests, found) < 1e-4


def test_requests_that_cannot_be_served_are_refused_before_any_is_accepted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for bad, complaint in (
        (make_request(1, budget=198), "max_length is 200"),
        (make_request(1, prompt=np.array([VOCAB_SIZE], np.int32)), "outside the vocabulary"),
        (make_request(1, stop_strings=("x",)), "decode_text"),
    ):
        with pytest.raises(ValueError, match=complaint):
            engine.submit([make_request(0), bad])
    assert engine.stats().num_waiting == 0
