"""The arithmetic of activations against what autograd really keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.sizing import activations
from tailrace.sizing.activations import Activations, logits_bytes
from tailrace.sizing.model_shape import ModelShape
from tailrace.store.segment import ResponsePayload
from tailrace.trainer.batch import Sample
from tailrace.trainer.model import network
from tailrace.trainer.model.collate import MicroBatch, collate
from tailrace.trainer.model.model_files import load_model
from tailrace.trainer.model.network import Network

WIDE = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 16}
NARROW = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5, "num_attention_heads": 4, "head_dim": 32}
MIXTURE = NARROW | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
KINDS: list[tuple[type[PreTrainedConfig], type[PreTrainedModel], dict[str, int]]] = [
    (LlamaConfig, LlamaForCausalLM, WIDE),
    (LlamaConfig, LlamaForCausalLM, NARROW),
    (Qwen3Config, Qwen3ForCausalLM, WIDE),
    (Qwen3MoeConfig, Qwen3MoeForCausalLM, MIXTURE),
]
SHAPE = ModelShape(
    vocab_size=64, hidden_size=96, intermediate_size=256, num_layers=3, num_heads=6, num_kv_heads=2, head_dim=16
)


def sample(number: int, length: int) -> Sample:
    random = np.random.default_rng(number)
    response_id = ResponseId(GroupId("train", 0, number), 0)
    response = ResponsePayload(
        response_id=response_id,
        tokens=random.integers(0, 60, length).astype(np.int32),
        logprobs=np.zeros(length, np.float32),
        behaviour_logprobs=np.zeros(length, np.float32),
        mask=np.ones(length, np.uint8),
        versions=((Version(0), length),),
    )
    prompt = np.array([number], np.int32)
    return Sample(response_id=response_id, prompt=prompt, response=response, score=0.0)


def kept_bytes(scorer: Network, micro: MicroBatch) -> int:
    """Bytes that autograd keeps for the backward pass, weights not counted."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in scorer.model.parameters()}
    held: dict[int, torch.Tensor] = {}  # keeps them alive, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scorer.score(micro)
    return sum(tensor.untyped_storage().nbytes() for tensor in held.values())


def per_token(scorer: Network) -> float:
    """Bytes that one more token costs; what does not grow with tokens drops out."""
    counts = []
    for length in (20, 60):
        micro = collate([sample(n, length) for n in range(4)], [1.0] * 4, Version(0), torch.device("cpu"))
        counts.append((len(micro.tree.tokens_U), kept_bytes(scorer, micro)))
    (few, less), (many, more) = counts
    return (more - less) / (many - few)


def save(config: type[PreTrainedConfig], model: type[PreTrainedModel], sizes: dict[str, int], folder: Path) -> None:
    model(config(**sizes, vocab_size=64, num_key_value_heads=2, tie_word_embeddings=True)).save_pretrained(folder)


def log_softmax(shape: ModelShape) -> int:
    return 4 * shape.vocab_size


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 computes it another way
@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize(("config", "model", "sizes"), KINDS)
def test_what_a_layer_keeps_is_what_autograd_keeps(
    config: type[PreTrainedConfig],
    model: type[PreTrainedModel],
    sizes: dict[str, int],
    autocast: torch.dtype | None,
    recomputes: bool,
    tmp_path: Path,
) -> None:
    save(config, model, sizes, tmp_path)
    loaded = load_model(tmp_path, device=torch.device("cpu"), gradient_checkpointing=recomputes)
    shape = ModelShape.read(tmp_path)
    predicted = Activations.of(shape, is_autocast=autocast is not None)
    layer = predicted.layer_input if recomputes else predicted.layer
    expected = shape.num_layers * layer + predicted.outside + log_softmax(shape)
    assert per_token(Network(loaded, temperature=1.0, autocast=autocast)) == pytest.approx(expected, rel=0.1)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.filterwarnings("default")  # torch warns of itself when it compiles
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize(("config", "model", "sizes"), KINDS[:3])
def test_what_a_compiled_layer_keeps_is_what_autograd_keeps(
    config: type[PreTrainedConfig],
    model: type[PreTrainedModel],
    sizes: dict[str, int],
    autocast: torch.dtype | None,
    tmp_path: Path,
) -> None:
    save(config, model, sizes, tmp_path)
    loaded = load_model(tmp_path, device=torch.device("cpu"), gradient_checkpointing=False)
    shape = ModelShape.read(tmp_path)
    predicted = Activations.of(shape, is_autocast=autocast is not None, is_compiled=True)
    expected = shape.num_layers * predicted.layer + predicted.outside + log_softmax(shape)
    compiled = Network(loaded, temperature=1.0, autocast=autocast, is_compiled=True)
    assert per_token(compiled) == pytest.approx(expected, rel=0.05)


def test_layers_with_experts_count_as_not_compiled() -> None:
    mixture = replace(SHAPE, num_sparse_layers=3, num_experts=4, experts_per_token=2, expert_size=48)
    plain, compiled = (Activations.of(mixture, is_autocast=True, is_compiled=each) for each in (False, True))
    assert plain == compiled


def test_a_kernel_that_reads_logits_holds_them_and_their_gradient() -> None:
    plain, fused, in_half = (
        logits_bytes(SHAPE, 7, is_autocast=is_autocast, is_fused=is_fused)
        for is_autocast, is_fused in ((True, False), (False, True), (True, True))
    )
    assert (plain, fused, in_half) == (16 * 7 * 64, 8 * 7 * 64, 4 * 7 * 64)
    most = logits_bytes(SHAPE, 10**9, is_autocast=True, is_fused=True)
    assert most == 4 * network.LOGITS_PER_CHUNK


def test_the_logits_of_a_chunk_are_those_of_the_trainer() -> None:
    assert activations.LOGITS_PER_CHUNK == network.LOGITS_PER_CHUNK
