"""New weights in vLLM: nothing of an old version survives a pull."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3MoeConfig

from contract.engine_suite import parts
from engines.rollouts import VOCAB_SIZE, generate, make_request, random_prompt, save_random_model, small_llama
from tailrace.core.ids import Version
from tailrace.engines.contract import Request
from tailrace.engines.vllm.engine import VllmEngine
from tailrace.engines.vllm.options import VllmOptions
from tailrace.store.segment import ResponsePayload

OPTIONS = VllmOptions(max_running=4, max_length=200)
MakeEngine = Callable[..., VllmEngine]


CONFIGS = {
    "tied": small_llama(head_dim=32, tie_word_embeddings=True),  # embedding and output head are one tensor
    "untied": small_llama(head_dim=32, tie_word_embeddings=False),
    "experts": Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,  # an expert's tensors are square, so that rows taken for columns raise no error
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        initializer_range=0.25,
        tie_word_embeddings=False,
    ),
}


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> PretrainedConfig:
    return CONFIGS[request.param]


@pytest.fixture
def models(tmp_path: Path, config: PretrainedConfig) -> tuple[Path, Path]:
    """Two checkpoints of one architecture."""
    old, new = tmp_path / "old", tmp_path / "new"
    save_random_model(old, config)
    save_random_model(new, config, seed=1)
    return old, new


@pytest.fixture
def make_engine() -> Iterator[MakeEngine]:
    made: list[VllmEngine] = []

    def make(checkpoint: Path, kind: type[VllmEngine] = VllmEngine) -> VllmEngine:
        made.append(kind(checkpoint, seed=0, options=OPTIONS))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def tensors(checkpoint: Path) -> Mapping[str, torch.Tensor]:
    """Weights under the names of the Transformers model, as a trainer publishes them."""
    return dict(AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).state_dict())


def greedy_request() -> Request:
    """A request with a prompt that fills several blocks of the KV cache."""
    return make_request(prompt=random_prompt(0, 100), temperature=0.0, budget=60)


def answer(engine: VllmEngine) -> ResponsePayload:
    [response] = generate(engine, [greedy_request()]).values()
    return response


def test_after_a_pull_greedy_output_is_that_of_a_fresh_engine(
    make_engine: MakeEngine, models: tuple[Path, Path]
) -> None:
    old, new = models
    engine = make_engine(old)
    before = answer(engine)
    engine.pull(parts(engine, tensors(new)), Version(1))
    after, fresh = answer(engine), answer(make_engine(new))
    assert after.tokens.tolist() == fresh.tokens.tolist() != before.tokens.tolist()
    np.testing.assert_allclose(after.logprobs, fresh.logprobs, atol=1e-5)
    engine.pull(parts(engine, tensors(old)), Version(2))
    assert answer(engine).tokens.tolist() == before.tokens.tolist()


class KeepsPrefixCache(VllmEngine):
    """An engine with the fault that the test above must find."""

    def _reset_prefix_cache(self) -> None:
        pass


def test_a_prefix_cache_that_survives_a_pull_would_be_seen(make_engine: MakeEngine, models: tuple[Path, Path]) -> None:
    old, new = models
    engine = make_engine(old, KeepsPrefixCache)
    answer(engine)
    engine.pull(parts(engine, tensors(new)), Version(1))
    stale, fresh = answer(engine), answer(make_engine(new))
    assert np.abs(stale.logprobs[:1] - fresh.logprobs[:1]).max() > 1e-3


def test_a_prompt_is_computed_once_for_all_responses_to_it(make_engine: MakeEngine, models: tuple[Path, Path]) -> None:
    engine = make_engine(models[0])
    generate(engine, [greedy_request()])
    engine.submit([make_request(0, member, prompt=random_prompt(0, 100), budget=60) for member in range(4)])
    engine.step()
    # 100 tokens are four blocks of 32, of which three are full and shared; each response has one block of its own.
    assert engine.stats().kv_tokens_used == (3 + 4) * 32
    engine.abort([make_request(0, member).response_id for member in range(4)])


def test_preemptions_are_counted_and_lose_no_token(make_engine: MakeEngine, models: tuple[Path, Path]) -> None:
    engine = VllmEngine(models[0], seed=0, options=VllmOptions(max_running=4, max_length=160, kv_tokens=192))
    requests = [make_request(index, budget=120) for index in range(4)]
    found = generate(engine, requests)
    assert engine.stats().num_preemptions > 0
    assert {len(response) for response in found.values()} == {120}
    engine.close()
