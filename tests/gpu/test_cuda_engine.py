"""The native engine on CUDA: the contract, and log-probs that agree with Transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("contract.engine_suite")

from transformers import PreTrainedModel  # noqa: E402

from contract.engine_suite import *  # noqa: E402, F403
from engines.rollouts import generate, largest_gap, make_request, save_random_model, small_llama  # noqa: E402
from tailrace.engines.contract import Engine  # noqa: E402
from tailrace.engines.native.engine import NativeEngine  # noqa: E402
from tailrace.engines.native.limits import Decoding, EngineLimits  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint, small_llama(head_dim=16))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    return dict(save_random_model(tmp_path_factory.mktemp("other"), small_llama(head_dim=16), seed=1).state_dict())


@pytest.fixture(params=[Decoding.PLAIN, Decoding.PAGED])
def make_engine(
    request: pytest.FixtureRequest, checkpoint: Path, reference_model: PreTrainedModel
) -> Callable[..., Engine]:
    def make(
        *,
        max_running: int = 8,
        max_length: int = 160,
        kv_tokens: int | None = None,
        seed: int = 0,
        decode_text: Callable[[Sequence[int]], str] | None = None,
        deterministic: bool = False,
    ) -> Engine:
        limits = EngineLimits(max_running=max_running, max_length=max_length, kv_tokens=kv_tokens)
        return NativeEngine(
            checkpoint,
            seed=seed,
            limits=limits,
            device="cuda",
            deterministic=deterministic,
            decoding=Decoding.AUTO if deterministic else request.param,
            decode_text=decode_text,
        )

    return make


@pytest.mark.parametrize("decoding", [Decoding.PLAIN, Decoding.PAGED])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.5)])
def test_log_probs_agree_with_transformers(
    checkpoint: Path, reference_model: PreTrainedModel, dtype: torch.dtype, tolerance: float, decoding: Decoding
) -> None:
    limits = EngineLimits(max_running=16, max_length=160)
    engine = NativeEngine(checkpoint, seed=0, limits=limits, device="cuda", dtype=dtype, decoding=decoding)
    requests = [make_request(index, member, budget=60) for index in range(4) for member in range(4)]
    assert largest_gap(reference_model, requests, generate(engine, requests)) < tolerance
