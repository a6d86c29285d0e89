"""Rows without padding, also with compiled layers, give the scores and gradients of padded rows, in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engines.rollouts import save_random_model, small_llama
from tailrace.core.ids import Version
from tailrace.trainer import varlen
from tailrace.trainer.batch import Sample
from tailrace.trainer.microbatch import collate
from tailrace.trainer.model_files import load_model
from tailrace.trainer.network import Network
from trainer.conftest import make_groups  # noqa: F401
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
