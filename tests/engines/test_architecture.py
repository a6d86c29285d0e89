"""Which checkpoints the native engine accepts, and what it says about the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.engines.native.architecture import parse_architecture, read_architecture

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}


def parse(**changes: Any):
    return parse_architecture(QWEN3 | changes)


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "MistralForCausalLM"])
def test_an_unsupported_architecture_is_refused_naming_the_supported_ones(name: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        parse(architectures=[name])
    assert str(refusal.value) == (
        f"the native engine does not support {name};"
        " choose a model of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"
    )


def test_the_model_type_decides_where_no_architecture_is_named() -> None:
    assert parse(architectures=None, model_type="qwen3").has_qk_norm
    with pytest.raises(ValueError, match="gemma"):
        parse(architectures=None, model_type="gemma")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
    ],
)
def test_what_would_not_be_computed_exactly_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(**changes)


def test_old_and_new_spellings_of_rope_mean_the_same() -> None:
    old = parse(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0}).rope
    new = parse(rope_parameters={"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}).rope
    assert (old.variant, old.theta, old.parameters["factor"]) == (new.variant, new.theta, new.parameters["factor"])


def test_dynamic_rope_is_refused_before_the_start_beyond_the_positions_where_it_changes() -> None:
    dynamic = parse(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    dynamic.check_length(512)
    with pytest.raises(ValueError, match=r"dynamic rope up to max_position_embeddings \(512\), but .* 513 tokens"):
        dynamic.check_length(513)


def test_a_sliding_window_is_fine_as_long_as_nothing_slides() -> None:
    parse(sliding_window=64, use_sliding_window=False).check_length(500)
    parse(sliding_window=64, use_sliding_window=True, layer_types=["full_attention"] * 2).check_length(500)
    windowed = parse(sliding_window=64, use_sliding_window=True)
    windowed.check_length(64)
    with pytest.raises(ValueError, match="window of 64"):
        windowed.check_length(65)


def test_families_differ_in_biases_and_norms() -> None:
    qwen2 = parse(architectures=["Qwen2ForCausalLM"])
    assert (qwen2.has_qkv_bias, qwen2.has_output_bias, qwen2.has_qk_norm, qwen2.head_dim) == (True, False, False, 8)
    llama = parse(architectures=["LlamaForCausalLM"], attention_bias=True, mlp_bias=True)
    assert (llama.has_qkv_bias, llama.has_output_bias, llama.has_mlp_bias) == (True, True, True)
    assert parse().head_dim == 128


def test_a_directory_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_architecture(tmp_path)
