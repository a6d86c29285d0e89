"""Ranks that compute the same samples, each with a part of every layer, train as one process does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tailrace.config.load import check
from tailrace.runtime.inputs.sources import check_model
from tailrace.trainer.checkpoints.export import export
from tailrace.trainer.ranks import tensor_rules
from trainer.rank_process import Found
from trainer.rank_scenarios import ACCUMULATED, STEP, TWO_STEPS, Actions, Scenarios, assert_same, given, with_trainer

GRADIENT: Actions = [*ACCUMULATED, ("gradient",), STEP, ("weights",)]
SIZES: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "initializer_range": 0.3,
}


def write(path: Path, config: PretrainedConfig, kind: Any) -> Path:
    torch.manual_seed(7)
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # else norms would all be one, and biases zero
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen3_moe"}, "the layers of a 'qwen3_moe' model cannot be divided; those of llama, qwen2"),
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, "the model has 9 attention heads, which cannot"),
        ({"num_key_value_heads": 1}, "the model has 1 key and value heads, which cannot be divided by 2"),
        ({"intermediate_size": 49}, "the model has 49 columns in an MLP"),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_in_a_sentence(config: dict[str, Any], words: str) -> None:
    known = SIZES | {"model_type": "llama"}
    tensor_rules.check(known, 2)
    tensor_rules.check(known | config, 1)
    with pytest.raises(ValueError, match=re.escape(words)):
        tensor_rules.check(known | config, 2)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"sliding_window": 4096}, "trainer.num_ranks is 2, but a model with a sliding window is trained by one rank"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "with layers of the kind linear_attention"),
    ],
)
def test_a_model_that_ranks_cannot_train_is_refused_in_a_sentence(config: dict[str, Any], words: str) -> None:
    tensor_rules.check_ranks(config, 1)
    with pytest.raises(ValueError, match=words):
        tensor_rules.check_ranks(config, 2)


def test_a_window_that_is_not_used_is_no_window() -> None:
    tensor_rules.check_ranks({"sliding_window": 131072, "use_sliding_window": False}, 2)
    tensor_rules.check_ranks({"sliding_window": None, "layer_types": ["full_attention"]}, 2)


def test_the_refusal_comes_before_the_run(tmp_path: Path) -> None:
    path = write(tmp_path / "model", LlamaConfig(**SIZES | {"num_key_value_heads": 1}), LlamaForCausalLM)
    given = {"model": {"path": str(path), "device": "cpu"}, "trainer": {"num_ranks": 2, "tensor_parallel_size": 2}}
    with pytest.raises(ValueError, match="1 key and value heads"):
        check_model(check(given), path)


@pytest.mark.slow
@pytest.mark.long
def test_two_ranks_with_half_of_every_layer_train_as_one_process_does(
    scenarios: Scenarios, model_path: Path, untied_model_path: Path, tmp_path: Path
) -> None:
    biased = LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)
    scenarios.add("llama", model_path, GRADIENT)
    scenarios.add("untied", untied_model_path, GRADIENT)
    scenarios.add("biases", write(tmp_path / "biased", biased, LlamaForCausalLM), GRADIENT)
    scenarios.add("qwen2", write(tmp_path / "qwen2", Qwen2Config(**SIZES), Qwen2ForCausalLM), GRADIENT)
    qwen3 = write(tmp_path / "qwen3", Qwen3Config(**SIZES, head_dim=16), Qwen3ForCausalLM)
    scenarios.add("qwen3", qwen3, TWO_STEPS)
    scenarios.add("put off", qwen3, TWO_STEPS, with_trainer(reduce_gradients="last"))
    scenarios.add("optimizer on the host", model_path, TWO_STEPS, with_trainer(optimizer_device="cpu"))
    on_host: dict[str, Any] = {"gradients_device": "cpu", "optimizer_device": "cpu"}
    scenarios.add("gradients on the host", qwen3, TWO_STEPS, with_trainer(gradients_device="cpu"))
    scenarios.add("both on the host", qwen3, TWO_STEPS, with_trainer(**on_host))
    reference = with_trainer(given(kl_loss_coef=0.1), reference_device="cpu")
    scenarios.add("reference on the host", model_path, TWO_STEPS, reference)
    scenarios.add("recomputed", model_path, TWO_STEPS, with_trainer(gradient_checkpointing=True))
    scenarios.add("critic", model_path, TWO_STEPS, given(advantage_estimator="gae"))
    scenarios.add("reference", model_path, TWO_STEPS, given(kl_loss_coef=0.1))
    for name, found in scenarios.together(tensor_parallel_size=2).items():
        alone = scenarios.alone(name)
        for each in found:
            assert_same(alone, each)
        assert [each.num_rows for each in found] == [16, 16], name


@pytest.mark.slow
@pytest.mark.long
def test_shards_of_parts_train_as_one_process_does(
    scenarios: Scenarios, untied_model_path: Path, tmp_path: Path
) -> None:
    qwen3 = write(tmp_path / "qwen3", Qwen3Config(**SIZES, head_dim=16), Qwen3ForCausalLM)
    scenarios.add("untied", untied_model_path, GRADIENT)
    scenarios.add("critic", qwen3, TWO_STEPS, given(advantage_estimator="gae"))
    for name, found in scenarios.together(num_shards=2, tensor_parallel_size=2).items():
        alone = scenarios.alone(name)
        for each in found:
            assert_same(alone, each)
        assert [each.num_rows for each in found] == [8] * 4, name


@pytest.mark.slow
@pytest.mark.long
def test_replicas_of_parts_train_as_one_process_does(scenarios: Scenarios, tmp_path: Path) -> None:
    qwen3 = write(tmp_path / "qwen3", Qwen3Config(**SIZES, head_dim=16), Qwen3ForCausalLM)
    divided: Actions = [("accumulate", 0, [0]), ("accumulate", 1, [1]), STEP, ("weights",)]
    scenarios.add("divided", qwen3, [*divided, *TWO_STEPS[:4]])
    alone = scenarios.alone("divided")
    for each in scenarios.together(num_replicas=2, tensor_parallel_size=2)["divided"]:
        assert_same(alone, each)


@pytest.mark.slow
@pytest.mark.long
def test_checkpoints_are_continued_with_and_without_tensor_parallelism(
    scenarios: Scenarios, untied_model_path: Path
) -> None:
    begun, second = [*ACCUMULATED, STEP], [*ACCUMULATED, STEP, ("weights",)]
    scenarios.add("whole", untied_model_path, [*begun, ("weights",), *second])
    whole = scenarios.alone("whole")
    expected = Found(metrics=whole.metrics[1:], weights=whole.weights[1:])
    by_one, by_parts = scenarios.folder / "one", scenarios.folder / "parts"
    scenarios.plans.clear()
    scenarios.add("one", untied_model_path, [*begun, ("save", by_one)])
    scenarios.alone("one")
    scenarios.plans.clear()
    (scenarios.folder / "1").write_text("a file, where the second rank wants a folder")
    blocked = ("fail to save", scenarios.folder / "{index}" / "step")
    scenarios.add("parts", untied_model_path, [*begun, blocked, ("save", by_parts), ("weights",)])
    scenarios.add("from one", untied_model_path, [("load", by_one), *second])
    on_host = with_trainer(optimizer_device="cpu")
    scenarios.add("from one, on the host", untied_model_path, [("load", by_one), *second], on_host)
    found = scenarios.together(tensor_parallel_size=2)
    assert all("step" in str(each.error) for each in found["parts"]), "it fails on both"
    for name in ("from one", "from one, on the host"):
        for each in found[name]:
            assert_same(expected, each)
    export(by_parts, scenarios.folder / "exported", base=None)
    exported = LlamaForCausalLM.from_pretrained(scenarios.folder / "exported").state_dict()
    for name, tensor in found["parts"][0].weights[0].items():
        assert torch.equal(exported[name], tensor), name
    scenarios.plans.clear()
    scenarios.add("from parts", untied_model_path, [("load", by_parts), *second])
    assert_same(expected, scenarios.alone("from parts"))
    by_four = scenarios.folder / "four"
    scenarios.add("from parts", untied_model_path, [("load", by_parts), *second, ("save", by_four)])
    scenarios.add("from one", untied_model_path, [("load", by_one), *second])
    found = scenarios.together(num_shards=2, tensor_parallel_size=2)
    for each in (*found["from parts"], *found["from one"]):
        assert_same(expected, each)
    scenarios.plans.clear()
    scenarios.add("from four", untied_model_path, [("load", by_four), ("weights",)])
    for name, tensor in scenarios.alone("from four").weights[0].items():
        assert torch.equal(tensor, found["from parts"][0].weights[0][name]), name
