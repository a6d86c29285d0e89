"""How the engine decodes, and what it says if that is not what a GPU could do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.rollouts import save_random_model, small_llama
from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.data.models import resolve_model
from tailrace.engines.contract import Unsupported
from tailrace.engines.native.architecture import Architecture, read_architecture
from tailrace.engines.native.limits import Decoding
from tailrace.engines.native.runner_choice import choose_decoding
from tailrace.workers.messages import RolloutInit
from tailrace.workers.rollout_worker import make_engine

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def wide_heads(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    folder: Path = tmp_path_factory.mktemp("model")
    save_random_model(folder, small_llama(head_dim=96))
    return read_architecture(folder)


def test_auto_says_why_it_is_plain_on_a_gpu(wide_heads: Architecture) -> None:
    is_paged, note = choose_decoding(wide_heads, CUDA, torch.bfloat16, False, Decoding.AUTO)
    assert not is_paged
    assert note == (
        "decoding one token at a time (plain): heads have 96 dimensions, Triton kernels need a power of two from 16 on"
    )
    _, note = choose_decoding(wide_heads, CUDA, torch.bfloat16, True, Decoding.AUTO)
    assert note == "decoding one token at a time (plain): deterministic mode computes one token at a time"


def test_nothing_is_said_where_plain_is_normal_or_asked_for(wide_heads: Architecture) -> None:
    assert choose_decoding(wide_heads, CPU, torch.float32, False, Decoding.AUTO) == (False, None)
    assert choose_decoding(wide_heads, CPU, torch.float32, True, Decoding.AUTO) == (False, None)
    assert choose_decoding(wide_heads, CUDA, torch.bfloat16, False, Decoding.PLAIN) == (False, None)


def test_pages_are_used_where_they_are_asked_for_or_refused_with_the_reason(wide_heads: Architecture) -> None:
    assert choose_decoding(wide_heads, CPU, torch.float32, False, Decoding.PAGED) == (True, None)
    with pytest.raises(Unsupported, match="cannot decode with pages here: heads have 96 dimensions"):
        choose_decoding(wide_heads, CUDA, torch.bfloat16, False, Decoding.PAGED)


def test_a_worker_on_a_cpu_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    init = RolloutInit(
        checkpoint=resolve_model("tiny-arith"),
        model=ModelSettings(device="cpu"),
        rollout=RolloutSettings(max_running=2),
        max_length=64,
        seed=0,
    )
    make_engine(init)
    assert capsys.readouterr().out == ""
