"""Which samples are trained together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.model.collate import cut
from tailrace.trainer.trainer import Trainer

PROMPT = np.arange(2, 26, dtype=np.int32)
BUDGET = 64


def group_of(lengths: list[int]) -> list[Sample]:
    """Responses of these lengths to one long prompt, no two of them alike."""
    return [sample(ResponseId(GroupId("train", 0, 0), member), length) for member, length in enumerate(lengths)]


def sample(response_id: ResponseId, length: int) -> Sample:
    logprobs = np.full(length, -3.0, np.float32)
    response = ResponsePayload(
        response_id=response_id,
        tokens=np.full(length, 2 + response_id.member, np.int32),
        logprobs=logprobs,
        behaviour_logprobs=logprobs,
        mask=np.ones(length, np.uint8),
        versions=((Version(0), length),),
    )
    return Sample(response_id=response_id, prompt=PROMPT, response=response, score=float(response_id.member % 2))


def test_what_is_shared_counts_once_for_a_model_that_sees_trees_and_each_time_for_others() -> None:
    samples = group_of([2] * 4)
    assert cut(samples, sees_trees=True, max_tokens=BUDGET, overhead_tokens=128) == [[0, 1, 2, 3]]
    assert cut(samples, sees_trees=False, max_tokens=BUDGET, overhead_tokens=128) == [[0, 1], [2, 3]]


def test_whole_rows_go_with_those_of_similar_length() -> None:
    samples = group_of([1, 30, 2, 31, 1])
    assert cut(samples, sees_trees=False, max_tokens=110, overhead_tokens=20) == [[3, 1], [2, 0, 4]]


@pytest.fixture(scope="module")
def blind_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(**sizes, vocab_size=32, num_key_value_heads=2, sliding_window=8)
    path = tmp_path_factory.mktemp("blind")
    MistralForCausalLM(config).save_pretrained(path)
    return path


def test_a_model_that_sees_no_trees_never_reads_more_than_the_budget_at_once(
    make_trainer: Callable[..., Trainer], blind_model_path: Path
) -> None:
    settings = TrainerSettings(learning_rate=1e-3, max_tokens_per_gpu=BUDGET)
    trainer = make_trainer(path=blind_model_path, settings=settings)
    read: list[int] = []
    trainer.model.base_model.register_forward_pre_hook(
        lambda _, given, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    trainer.train([group_of([2, 3, 2, 4, 3, 2])])
    assert sum(read) >= 6 * len(PROMPT)
    assert max(read) <= BUDGET
