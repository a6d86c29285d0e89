"""The native network computes what Transformers computes, for random small configs of every supported family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from engines.rollouts import VOCAB_SIZE, save_random_model
from tailrace.devices.releasable_memory import StorageMemory
from tailrace.engines.native.architecture import read_architecture
from tailrace.engines.native.cache import KvCache, storage_index
from tailrace.engines.native.checkpoint import CheckpointTensors
from tailrace.engines.native.model import Model, PastKeys, RowSpan, SpanInputs, Write
from tailrace.engines.native.parameters import Filling, allocate

LENGTH = 40
CPU = torch.device("cpu")


def config_of(family: type[PretrainedConfig], **changes: Any) -> PretrainedConfig:
    settings = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    return family(**(settings | changes))


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
CONFIGS = {
    "llama": config_of(LlamaConfig),
    "llama tied, grouped, wide heads": config_of(
        LlamaConfig, tie_word_embeddings=True, num_key_value_heads=2, head_dim=20
    ),
    "llama with biases": config_of(LlamaConfig, attention_bias=True, mlp_bias=True),
    "llama, llama3 rope": config_of(LlamaConfig, rope_parameters=LLAMA3),
    "llama, linear rope": config_of(
        LlamaConfig, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
    ),
    "llama, dynamic rope": config_of(
        LlamaConfig, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "qwen2 grouped": config_of(Qwen2Config, num_key_value_heads=1, rope_parameters={"rope_theta": 1e6}),
    "qwen2 tied, yarn rope": config_of(Qwen2Config, tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3 grouped": config_of(Qwen3Config, num_key_value_heads=2, head_dim=16),
    "qwen3 tied, biased, yarn rope": config_of(
        Qwen3Config,
        tie_word_embeddings=True,
        head_dim=10,
        attention_bias=True,
        rope_parameters=YARN | {"attention_factor": 1.5, "beta_fast": 8, "beta_slow": 2},
    ),
}


def load_model(checkpoint: Path, dtype: torch.dtype = torch.float32) -> Model:
    shape = read_architecture(checkpoint)
    parameters = allocate(shape, StorageMemory(CPU), dtype=dtype)
    Filling(parameters, shape).fill(CheckpointTensors(checkpoint))
    return Model(shape, parameters, max_length=LENGTH)


def native_logits(model: Model, tokens: torch.Tensor, *, num_prefilled: int, chunk: int) -> torch.Tensor:
    """Logits of the positions from ``num_prefilled`` on; the earlier ones are prefilled in chunks."""
    dtype = model.parameters.embedding.dtype
    cache = KvCache(model.shape, [LENGTH], max_rows=3, kv_budget=3 * LENGTH, device=CPU, dtype=dtype)
    cache.reserve([3])
    row = 1
    base = torch.from_numpy(storage_index(np.array([row]), cache[0]))
    for start in range(0, num_prefilled, chunk):
        positions = torch.arange(start, min(start + chunk, num_prefilled))
        index = (base + positions[:, None]).flatten()
        write = Write(tokens=positions - start, index=index, storage=cache.storage(0))
        mask = (torch.arange(LENGTH) <= positions[:, None])[None, None]
        past = PastKeys(storage=cache[0], rows=torch.tensor([row]), num_keys=LENGTH, mask_M1CL=mask)
        model.prefill(tokens[None, positions], positions[None], [write], past if start else None)
    logits = []
    for position in range(num_prefilled, len(tokens)):
        span = RowSpan(
            start=0,
            stop=1,
            keys=[layer[0, row : row + 1] for layer in cache[0]],
            values=[layer[1, row : row + 1] for layer in cache[0]],
            storage=cache.storage(0),
        )
        mask = torch.zeros(1, 1, 1, LENGTH, dtype=dtype)
        mask[..., position + 1 :] = -torch.inf
        inputs = SpanInputs(span=span, write_index=(base + position).flatten(), mask=mask)
        logits.append(model.decode(tokens[position : position + 1], torch.tensor([position]), [inputs]))
    return torch.cat(logits)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = save_random_model(tmp_path, CONFIGS[name])
    tokens = torch.randint(0, VOCAB_SIZE, (LENGTH,))
    expected = reference(tokens[None]).logits[0]
    assert expected.std() > 0.5
    model = load_model(tmp_path)
    for num_prefilled, chunk in ((0, 1), (17, 17), (30, 7)):
        found = native_logits(model, tokens, num_prefilled=num_prefilled, chunk=chunk)
        torch.testing.assert_close(found, expected[num_prefilled:], atol=1e-4, rtol=0)


@torch.no_grad()
def test_bfloat16_follows_transformers_within_its_precision(tmp_path: Path) -> None:
    reference = save_random_model(tmp_path, CONFIGS["qwen3 grouped"])
    tokens = torch.randint(0, VOCAB_SIZE, (LENGTH,))
    expected = torch.softmax(reference(tokens[None]).logits[0], -1)
    found = native_logits(load_model(tmp_path, torch.bfloat16), tokens, num_prefilled=12, chunk=5).float()
    assert (torch.softmax(found, -1) - expected[12:]).abs().mean() < 0.01


@torch.no_grad()
def test_a_sharded_checkpoint_loads_like_a_single_file(tmp_path: Path) -> None:
    reference = save_random_model(tmp_path / "whole", CONFIGS["llama"])
    reference.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    whole, sharded = CheckpointTensors(tmp_path / "whole"), CheckpointTensors(tmp_path / "sharded")
    assert set(whole) == set(sharded)
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_weights_that_do_not_fit_are_named_and_none_is_written(tmp_path: Path) -> None:
    save_random_model(tmp_path, CONFIGS["llama"])
    model = load_model(tmp_path)
    before = model.parameters.embedding.clone()
    weights = {name: torch.zeros_like(tensor) for name, tensor in CheckpointTensors(tmp_path).items()}
    norm = "model.layers.1.input_layernorm.weight"
    for broken, complaint in (
        ({name: tensor for name, tensor in weights.items() if name != norm}, f"missing.*{norm}"),
        (weights | {norm: torch.zeros(3)}, f"{norm} has shape"),
        (weights | {"model.extra": torch.zeros(3)}, r"unknown.*model\.extra"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Filling(model.parameters, model.shape).fill(broken)
    assert torch.equal(model.parameters.embedding, before)


def test_pulled_weights_are_written_in_place(tmp_path: Path) -> None:
    save_random_model(tmp_path, CONFIGS["llama"])
    model = load_model(tmp_path)
    address = model.parameters.layers[0].qkv.data_ptr()
    Filling(model.parameters, model.shape).fill({n: torch.ones_like(t) for n, t in CheckpointTensors(tmp_path).items()})
    assert model.parameters.layers[0].qkv.data_ptr() == address
    assert (model.parameters.layers[0].qkv == 1).all()
