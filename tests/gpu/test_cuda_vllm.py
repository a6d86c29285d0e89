"""What vLLM does on GPUs alone: it releases its memory, and its adapters need half precision. The rest of its contract:
``tests/backends``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm")
pytest.register_assert_rewrite("contract.engine_suite")

from transformers import PreTrainedModel  # noqa: E402

from contract.engine_suite import (  # noqa: E402, F401
    adapted_model,
    generate,
    largest_gap,
    make_request,
    test_a_released_engine_needs_restore_and_weights_before_work,
    test_a_restored_engine_samples_the_same_tokens_again_and_again,
    test_memory_is_not_released_under_live_requests,
    test_memory_may_be_released_after_an_abort_in_the_middle_of_work,
    test_releasing_or_restoring_twice_changes_nothing,
)
from engines.rollouts import save_random_model, small_llama  # noqa: E402
from tailrace.engines.contract import Unsupported  # noqa: E402
from tailrace.engines.vllm.engine import VllmEngine  # noqa: E402
from tailrace.engines.vllm.options import VllmOptions  # noqa: E402


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
    """vLLM can release the memory of one engine per process, so each test makes one."""
    options = VllmOptions(max_running=8, max_length=160, kv_tokens=640, is_colocated=True)
    made: list[VllmEngine] = []

    def make() -> VllmEngine:
        made.append(VllmEngine(checkpoint, seed=0, options=options, device="cuda"))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_adapters_in_half_precision_and_none_in_float32(
    checkpoint: Path, reference_model: PreTrainedModel, tmp_path: Path
) -> None:
    options = VllmOptions(max_running=8, max_length=160, kv_tokens=640, max_adapters=1)
    with pytest.raises(Unsupported, match="bfloat16"):
        VllmEngine(checkpoint, seed=0, options=options, device="cuda")
    engine = VllmEngine(checkpoint, seed=0, options=options, device="cuda", dtype=torch.bfloat16)
    adapted = adapted_model(reference_model, tmp_path, 0)
    engine.load_adapter("one", tmp_path)
    request = replace(make_request(), adapter="one")
    found = generate(engine, [request])
    engine.close()
    assert largest_gap(adapted, [request], found) < largest_gap(reference_model, [request], found) / 4
