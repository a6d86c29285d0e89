from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GraniteConfig, GraniteForCausalLM

from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.model.collate import collate
from tailrace.trainer.model.model_files import load_model, resolve_device
from tailrace.trainer.model.network import Network

CPU = torch.device("cpu")
MakeGroups = Callable[..., list[list[Sample]]]


def expected_logprobs(network: Network, sample: Sample, temperature: float) -> torch.Tensor:
    """From the whole model's logits, one unpadded sequence at a time."""
    tokens = torch.from_numpy(np.concatenate([sample.prompt, sample.response.tokens]).astype(np.int64))
    logprobs = torch.log_softmax(network.model(input_ids=tokens[None]).logits[0] / temperature, dim=-1)
    places = torch.arange(len(sample.prompt) - 1, len(tokens) - 1)
    return logprobs[places, tokens[places + 1]]


def assert_scores_like_the_model(network: Network, samples: list[Sample], temperature: float) -> None:
    micro = collate(samples, [0.0] * len(samples), Version(0), CPU)
    with torch.no_grad():
        found = network.score(micro)
        expected = torch.cat([expected_logprobs(network, sample, temperature) for sample in samples])
    torch.testing.assert_close(found.logprobs_N, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_neither_padding_nor_company_changes_a_logprob(
    model_path: Path, make_groups: MakeGroups, temperature: float
) -> None:
    network = Network(load_model(model_path, device=CPU), temperature=temperature)
    samples = [sample for group in make_groups() for sample in group]
    assert_scores_like_the_model(network, samples, temperature)


def test_a_model_that_scales_its_logits_is_scored_by_its_own_rule(tmp_path: Path, make_groups: MakeGroups) -> None:
    config = GraniteConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        logits_scaling=5.0,
        initializer_range=0.3,
    )
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    network = Network(load_model(tmp_path, device=CPU), temperature=1.0)
    assert_scores_like_the_model(network, make_groups()[0], 1.0)


def test_logits_in_chunks_give_the_same_scores_and_gradients(model_path: Path, make_groups: MakeGroups) -> None:
    samples = make_groups()[0]
    micro = collate(samples, [0.0] * len(samples), Version(0), CPU)
    scores, gradients = [], []
    for logits_per_chunk in (2**20, 3 * 32):
        network = Network(load_model(model_path, device=CPU), temperature=1.0, logits_per_chunk=logits_per_chunk)
        network.model.double()
        found = network.score(micro)
        found.logprobs_N.sum().backward()
        scores.append((found.logprobs_N, found.entropy_N))
        gradients.append(network.model.get_input_embeddings().weight.grad)
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-6)
    assert gradients[0].abs().max() > 0.1


def test_the_entropy_of_a_uniform_distribution_is_the_logarithm_of_its_size(
    model_path: Path, make_groups: MakeGroups
) -> None:
    network = Network(load_model(model_path, device=CPU), temperature=1.0)
    with torch.no_grad():
        network.model.get_output_embeddings().weight.zero_()
    samples = make_groups()[0]
    found = network.score(collate(samples, [0.0] * len(samples), Version(0), CPU))
    assert found.entropy_N.tolist() == pytest.approx([np.log(32)] * len(found.entropy_N), rel=1e-5)
    assert not found.entropy_N.requires_grad


def test_a_temperature_of_zero_is_refused(model_path: Path) -> None:
    with pytest.raises(ValueError, match="got 0"):
        Network(load_model(model_path, device=CPU), temperature=0.0)


def test_a_device_goes_by_its_name() -> None:
    assert resolve_device("cpu") == CPU
    assert resolve_device("auto").type in ("cpu", "cuda")
