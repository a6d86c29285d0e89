"""A small random Llama on disk, and samples to train it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer
from trainer.rank_scenarios import Scenarios

VOCAB_SIZE = 32


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_model(tmp_path_factory.mktemp("model"), tied=True)


@pytest.fixture(scope="session")
def untied_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_model(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(scope="session")
def exact_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For equalities in fp64. Llama's norms compute in fp32 whatever the weights are; Phi's do not."""
    torch.manual_seed(7)
    config = PhiConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("exact")
    PhiForCausalLM(config).save_pretrained(path)
    return path


def _write_model(path: Path, *, tied: bool) -> Path:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        attention_dropout=0.3,
        bos_token_id=None,
        eos_token_id=1,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "none"}')
    (path / "generation_config.json").write_text('{"eos_token_id": 1, "temperature": 0.5, "do_sample": false}')
    return path


@pytest.fixture
def make_trainer(model_path: Path) -> Callable[..., Trainer]:
    def make(
        *,
        algorithm: AlgorithmSettings | None = None,
        settings: TrainerSettings | None = None,
        temperature: float = 1.0,
        path: Path = model_path,
        max_response_length: int | None = None,
        lora_rank: int = 0,
        lora_alpha: int = 32,
    ) -> Trainer:
        return Trainer(
            path,
            model=ModelSettings(path=str(path), device="cpu", lora_rank=lora_rank, lora_alpha=lora_alpha),
            settings=settings or TrainerSettings(learning_rate=1e-3),
            algorithm=algorithm or AlgorithmSettings(),
            temperature=temperature,
            max_steps=10,
            seed=0,
            max_response_length=max_response_length,
        )

    return make


@pytest.fixture
def make_groups() -> Callable[..., list[list[Sample]]]:
    """Random groups of unequal sizes and lengths, some of their tokens masked."""

    def make(seed: int = 0, *, num_groups: int = 5, version: int = 0) -> list[list[Sample]]:
        random = np.random.default_rng(seed)
        groups = []
        for prompt in range(num_groups):
            group = GroupId("train", 0, prompt)
            prompt_tokens = random.integers(2, VOCAB_SIZE, random.integers(1, 8), dtype=np.int32)
            members = range(int(random.integers(2, 6)))
            groups.append([_sample(random, ResponseId(group, member), prompt_tokens, version) for member in members])
        return groups

    return make


def _sample(random: np.random.Generator, response_id: ResponseId, prompt: np.ndarray, version: int) -> Sample:
    length = int(random.integers(1, 20))
    logprobs = random.normal(-3.0, 0.3, length).astype(np.float32)
    response = ResponsePayload(
        response_id=response_id,
        tokens=random.integers(1, VOCAB_SIZE, length, dtype=np.int32),
        logprobs=logprobs,
        behaviour_logprobs=logprobs,
        mask=(random.random(length) < 0.9).astype(np.uint8),
        versions=((Version(version), length),),
    )
    return Sample(response_id=response_id, prompt=prompt, response=response, score=float(random.integers(0, 3)))


@pytest.fixture
def scenarios(make_groups: Callable[..., list[list[Sample]]], tmp_path: Path) -> Scenarios:
    """Two batches of one step, of unequal size."""
    groups = make_groups(3, num_groups=6)
    return Scenarios(tmp_path, [groups[:4], groups[4:]])
