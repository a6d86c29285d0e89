"""vLLM on a GPU: it releases its memory and takes it back, and its adapters need half precision.

``test_cuda_vllm.py`` runs each test in a process of its own: vLLM can release the memory of one engine per process, and
the environment that it needs would reach other tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tailrace.engines.vllm.versions import prepare_environment

prepare_environment(is_gpu=torch.cuda.is_available())  # as the worker of an engine does before it imports vLLM
pytest.register_assert_rewrite("contract.engine_suite")

from contract import engine_suite  # noqa: E402
from contract.engine_suite import (  # noqa: E402, F401
    test_a_released_engine_needs_restore_and_weights_before_work,
    test_a_restored_engine_samples_the_same_tokens_again_and_again,
    test_memory_is_not_released_under_live_requests,
    test_memory_may_be_released_after_an_abort_in_the_middle_of_work,
    test_releasing_or_restoring_twice_changes_nothing,
)
from engines.rollouts import make_request, save_random_model, small_llama  # noqa: E402
from tailrace.engines.contract import Unsupported  # noqa: E402
from tailrace.engines.vllm.engine import VllmEngine  # noqa: E402
from tailrace.engines.vllm.options import VllmOptions  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint, small_llama(head_dim=32))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    other = save_random_model(tmp_path_factory.mktemp("other"), small_llama(head_dim=32), seed=1)
    return dict(other.state_dict())


@pytest.fixture
def make_engine(checkpoint: Path, reference_model: PreTrainedModel) -> Iterator[Callable[[], VllmEngine]]:
    options = VllmOptions(max_running=8, max_length=160, kv_tokens=640, may_release=True)
    made: list[VllmEngine] = []

    def make() -> VllmEngine:
        made.append(VllmEngine(checkpoint, seed=0, options=options, device=DEVICE))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_adapters_in_half_precision_and_none_in_float32(tmp_path: Path) -> None:
    checkpoint, adapter = tmp_path / "model", tmp_path / "adapter"
    model = save_random_model(checkpoint, small_llama(head_dim=32))
    options = VllmOptions(max_running=8, max_length=160, kv_tokens=640, max_adapters=1)
    with pytest.raises(Unsupported, match="bfloat16"):
        VllmEngine(checkpoint, seed=0, options=options, device="cuda")
    engine = VllmEngine(checkpoint, seed=0, options=options, device="cuda", dtype=torch.bfloat16)
    adapted = engine_suite.adapted_model(model, adapter, 0)
    engine.load_adapter("one", adapter)
    request = replace(make_request(), adapter="one")
    found = engine_suite.generate(engine, [request])
    engine.close()
    gap = engine_suite.largest_gap
    assert gap(adapted, [request], found) < gap(model, [request], found) / 4
