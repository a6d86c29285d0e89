"""Layers that come from host memory through two buffers of a GPU."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tailrace.judge.judge import MemoryBudget
from tailrace.judge.model import JudgeModel
from tailrace.judge.profiling import measure_profile
from tailrace.judge.questions import Question

CUDA = torch.device("cuda", 0)
NUM_LAYERS = 8
ROUNDED = NUM_LAYERS * 2**21
"""torch takes memory for a layer in pieces of 2 MiB."""


@pytest.fixture(autouse=True)
def empty_device() -> None:
    """Free the models of earlier tests: the tests of memory count all that is allocated."""
    gc.collect()


def judge_model(num_resident: int = NUM_LAYERS, *, is_packed: bool = False, **changes: Any) -> JudgeModel:
    sizes = {
        "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**sizes | {"initializer_range": 0.05} | changes)).to(torch.bfloat16)
    return JudgeModel(model, CUDA, num_resident=num_resident, is_packed=is_packed)


def allocated() -> int:
    """Bytes in use. Buffers that the copy stream used count until torch has looked whether it is done with them."""
    torch.cuda.synchronize(CUDA)
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(CUDA)


def questions(*lengths: int) -> list[Question]:
    random = np.random.default_rng(0)
    texts = [random.integers(0, 4096, length).astype(np.int32) for length in lengths]
    return [
        *(Question.about_the_end(tokens, np.array([1, 2, 3], np.int32)) for tokens in texts),
        Question.about_each_token(texts[0], start=1),
    ]


def test_answers_have_the_same_bits_wherever_layers_lie_and_in_any_company() -> None:
    model, asked = judge_model(), questions(900, 17, 5000, 1, 256)
    expected = model.logprobs(asked)
    for num_resident in (4, 0, 1, 7, NUM_LAYERS):
        for is_overlapped in (True, False):
            model.offload.keep(num_resident, is_overlapped=is_overlapped)
            for _ in range(3):
                for one, other in zip(model.logprobs(asked), expected, strict=True):
                    np.testing.assert_array_equal(one, other)
    model.offload.keep(2)
    for question, together in zip(asked, expected, strict=True):
        np.testing.assert_array_equal(model.logprobs([question])[0], together)


def test_sequences_side_by_side_get_nearly_the_answers_that_each_has_alone() -> None:
    asked = questions(900, 17, 5000, 1, 256, 300, 2500)
    expected = judge_model().logprobs(asked)
    model = judge_model(is_packed=True)
    assert model.decoder.is_packed
    found = model.logprobs(asked)
    for one, other in zip(found, expected, strict=True):
        assert np.abs(one - other).max() < 0.3, "bfloat16 has steps of 0.06 between 8 and 16"
    for num_resident in (4, 0):
        model.offload.keep(num_resident)
        for one, other in zip(model.logprobs(asked), found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_passes_that_follow_one_another_at_once_do_not_overwrite_weights_in_use() -> None:
    """Short sequences: copies take longer than layers, and the host is far ahead of the device."""
    model, asked = judge_model(0), questions(3)[:1]
    tokens = torch.from_numpy(asked[0].tokens_L).long().to(CUDA)
    [expected] = model.decoder.states([tokens])
    states = [model.decoder.states([tokens])[0] for _ in range(50)]
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in states)


def test_layers_that_are_not_resident_take_no_memory_but_two_buffers() -> None:
    model = judge_model()
    everything = allocated()
    for num_resident in (4, 0):
        model.offload.keep(num_resident)
        saved = (NUM_LAYERS - num_resident - 2) * model.offload.layer_bytes
        assert everything - allocated() == pytest.approx(saved, abs=ROUNDED)
    model.offload.keep(NUM_LAYERS)
    assert allocated() == pytest.approx(everything, abs=ROUNDED)


def test_a_pass_stays_within_its_budget_by_the_profile() -> None:
    model = judge_model(0)
    profile = measure_profile(model, (512, 2048, 8192))
    assert profile.copy_s > 0
    tokens = questions(6000)[:1]
    for spare in (0, 3, NUM_LAYERS):
        num_bytes = profile.device_bytes(0, longest=6000, num_tokens=6000) + spare * profile.layer_bytes
        found = MemoryBudget(num_bytes=num_bytes, profile=profile).resident_layers(6000, 6000)
        assert found is not None
        model.offload.keep(found)
        allocated()
        torch.cuda.reset_peak_memory_stats(CUDA)
        model.logprobs(tokens)
        # What cuBLAS takes for itself, and what torch rounds up.
        assert torch.cuda.max_memory_allocated(CUDA) <= num_bytes + 64 * 2**20
