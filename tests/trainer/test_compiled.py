"""Layers that are compiled with ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.trainer import Trainer
from trainer.packed_attention import pack_rows
from trainer.rank_process import Found
from trainer.rank_scenarios import TWO_STEPS, Scenarios, assert_same, with_trainer


def has_equal_scores(batch: list[list[Sample]]) -> bool:
    return any(len({sample.score for sample in group}) == 1 for group in batch)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("default")  # torch warns of itself when it compiles
@pytest.mark.parametrize(
    ("is_packed", "changes", "others"),
    [
        (False, {}, {}),
        (False, {"gradient_checkpointing": True}, {}),
        (False, {}, {"lora_rank": 4}),
        (False, {}, {"algorithm": AlgorithmSettings(advantage_estimator="gae")}),
        (True, {}, {}),
        (True, {"max_tokens_per_gpu": 16}, {}),  # some micro-batches have one response, and so no shared prefix
        (True, {"gradient_checkpointing": True}, {}),
    ],
    ids=["plain", "recomputed", "adapter", "critic", "packed", "packed in small batches", "packed and recomputed"],
)
def test_compiled_once_they_give_the_same_steps_for_batches_of_any_size(
    is_packed: bool,
    changes: dict[str, Any],
    others: dict[str, Any],
    make_trainer: Callable[..., Trainer],
    make_groups: Callable[..., list[list[Sample]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = TrainerSettings(learning_rate=1e-3, **changes)
    plain = make_trainer(settings=asked, **others)
    if is_packed:
        pack_rows(monkeypatch)
    compiled = make_trainer(settings=asked.model_copy(update={"torch_compile": True}), **others)
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["stats"]
    counted.clear()
    expected, found, num_graphs = Found(), Found(), []
    batches = [make_groups(num_groups, num_groups=num_groups) for num_groups in (2, 5, 3, 4)]
    # Groups whose scores are all equal have no backward pass. The first step has none.
    assert [has_equal_scores(batch) for batch in batches] == [False, False, True, False]
    for batch in batches:
        for trainer, seen in ((plain, expected), (compiled, found)):
            seen.metrics.append(trainer.train(batch).metrics)
            seen.weights.append({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
        num_graphs.append(counted["unique_graphs"])
    # Packed, a whole layer is one graph; and one more where activations are recomputed, whose input has no gradient.
    assert num_graphs[0] > 0
    assert (num_graphs[0] <= 2) == is_packed
    assert set(num_graphs) == {num_graphs[0]}
    assert_same(expected, found)


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_with_compiled_layers_train_as_one_process_without(scenarios: Scenarios, model_path: Path) -> None:
    scenarios.add("plain", model_path, TWO_STEPS)
    alone = scenarios.alone("plain")
    scenarios.plans.clear()
    scenarios.add("compiled", model_path, TWO_STEPS, with_trainer(torch_compile=True))
    for found in scenarios.together(num_shards=2)["compiled"]:
        assert_same(alone, found)
