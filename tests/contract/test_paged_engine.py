"""The native engine that decodes several tokens at a time over a paged KV cache keeps the engine contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("contract.engine_suite")

from transformers import PreTrainedModel  # noqa: E402

from contract.engine_suite import *  # noqa: E402, F403
from engines.rollouts import save_random_model  # noqa: E402
from tailrace.engines.contract import Engine  # noqa: E402
from tailrace.engines.native.engine import NativeEngine  # noqa: E402
from tailrace.engines.native.limits import Decoding, EngineLimits  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    return dict(save_random_model(tmp_path_factory.mktemp("other"), seed=1).state_dict())


@pytest.fixture
def make_engine(checkpoint: Path, reference_model: PreTrainedModel) -> Callable[..., Engine]:
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
        decoding = Decoding.AUTO if deterministic else Decoding.PAGED
        return NativeEngine(
            checkpoint,
            seed=seed,
            limits=limits,
            deterministic=deterministic,
            decoding=decoding,
            decode_text=decode_text,
        )

    return make
