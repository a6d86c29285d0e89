"""Rows without padding give the scores and gradients of padded rows; torch's kernel gives what plain torch does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engines.rollouts import save_random_model, small_llama
from tailrace.core.ids import Version
from tailrace.trainer.batch import Sample
from tailrace.trainer.model import varlen
from tailrace.trainer.model.collate import collate
from tailrace.trainer.model.model_files import load_model
from tailrace.trainer.model.network import Network
from trainer.conftest import make_groups  # noqa: F401
from trainer.packed_attention import plain_varlen_attn
from trainer.probes import gradient

CUDA = torch.device("cuda")


@pytest.mark.filterwarnings("default")  # torch warns of itself when it compiles
@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "compiled"])
def test_packed_rows_give_the_scores_and_gradients_of_padded_rows(
    tmp_path: Path,
    make_groups: Callable[..., list[list[Sample]]],  # noqa: F811
    is_compiled: bool,
) -> None:
    save_random_model(tmp_path, small_llama(head_dim=16))
    assert varlen.is_available(CUDA, torch.bfloat16, 16)
    samples = [sample for group in make_groups() for sample in group]
    found = []
    for is_packed in (True, False):
        network = Network(
            load_model(tmp_path, device=CUDA),
            temperature=1.0,
            autocast=torch.bfloat16,
            is_compiled=is_compiled and is_packed,
        )
        micro = collate(samples, [0.0] * len(samples), Version(0), CUDA, is_packed=is_packed)
        scores = network.score(micro)
        scores.logprobs_N.sum().backward()
        found.append((scores.logprobs_N.detach(), gradient(network.model)))
    (packed, its_gradient), (padded, other_gradient) = found
    torch.testing.assert_close(packed, padded, atol=0.15, rtol=0)
    assert torch.cosine_similarity(its_gradient.flatten(), other_gradient.flatten(), dim=0) > 0.999


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("scale", [None, 0.1])
def test_the_kernel_gives_what_plain_torch_does(num_kv_heads: int, scale: float | None) -> None:
    torch.manual_seed(0)
    row_ends = torch.tensor([0, 1, 40, 41, 300], dtype=torch.int32, device=CUDA)
    states = [
        torch.randn(300, heads, 16, device=CUDA, dtype=torch.bfloat16, requires_grad=True)
        for heads in (4, num_kv_heads, num_kv_heads)
    ]
    exact = [given.detach().double().requires_grad_() for given in states]
    found = varlen.attend(*states, row_ends, 259, scale)
    expected = plain_varlen_attn(*exact, row_ends, row_ends, 259, 259, scale=scale, window_size=(-1, 0))
    weights = torch.randn_like(expected)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0.02)
    for ours, theirs in zip(states, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert (ours.grad - theirs.grad).abs().max() < 0.02 * theirs.grad.abs().max()


@pytest.mark.filterwarnings("default")  # torch warns of itself when it compiles
def test_a_compiled_layer_is_one_graph_for_batches_of_any_size(
    tmp_path: Path,
    make_groups: Callable[..., list[list[Sample]]],  # noqa: F811
) -> None:
    save_random_model(tmp_path, small_llama(head_dim=16))
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["stats"]
    counted.clear()
    network = Network(load_model(tmp_path, device=CUDA), temperature=1.0, autocast=torch.bfloat16, is_compiled=True)
    for num_groups in (2, 5, 3, 4):
        samples = [sample for group in make_groups(num_groups, num_groups=num_groups) for sample in group]
        micro = collate(samples, [0.0] * len(samples), Version(0), CUDA, is_packed=True)
        network.score(micro).logprobs_N.sum().backward()
        assert counted["unique_graphs"] == 1
