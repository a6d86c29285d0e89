"""The vLLM engine keeps the engine contract. Runs where vLLM is installed (``make test-backends``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm")
pytest.register_assert_rewrite("contract.engine_suite")

from transformers import PreTrainedModel  # noqa: E402

from contract import engine_suite  # noqa: E402
from contract.engine_suite import *  # noqa: E402, F403
from engines.rollouts import save_random_model, small_llama  # noqa: E402
from tailrace.engines.contract import Engine, Unsupported  # noqa: E402
from tailrace.engines.vllm.engine import VllmEngine  # noqa: E402
from tailrace.engines.vllm.options import VllmOptions  # noqa: E402

HEAD_DIM = 32
"""Smallest head size of vLLM's attention on CPUs."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint, small_llama(head_dim=HEAD_DIM))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, torch.Tensor]:
    other = save_random_model(tmp_path_factory.mktemp("other"), small_llama(head_dim=HEAD_DIM), seed=1)
    return dict(other.state_dict())


@pytest.fixture
def make_engine(checkpoint: Path, reference_model: PreTrainedModel) -> Iterator[Callable[..., Engine]]:
    made: list[VllmEngine] = []

    def make(
        *,
        max_running: int = 8,
        max_length: int = 160,
        kv_tokens: int | None = None,
        seed: int = 0,
        decode_text: Callable[[Sequence[int]], str] | None = None,
        deterministic: bool = False,
        tensor_parallel_size: int = 1,
        max_adapters: int = 0,
    ) -> Engine:
        if deterministic:
            raise Unsupported("the vllm engine has no deterministic mode")  # as the registry does
        options = VllmOptions(
            max_running=max_running,
            max_length=max_length,
            kv_tokens=kv_tokens or max(max_length, max_running * max_length // 2),
            tensor_parallel_size=tensor_parallel_size,
            max_adapters=max_adapters,
        )
        made.append(VllmEngine(checkpoint, seed=seed, options=options, device=DEVICE, decode_text=decode_text))
        return made[-1]

    yield make
    # vLLM's engines share state of the process: the first that is closed ends it for all.
    for engine in made:
        engine.close()


@pytest.mark.skipif(torch.cuda.device_count() == 1, reason="needs two GPUs")
def test_an_instance_on_two_devices_computes_the_same_model_and_pulls_only_what_each_holds(
    make_engine: Callable[..., Engine], reference_model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> None:
    engine_suite.test_an_instance_on_two_devices_computes_the_same_model_and_pulls_only_what_each_holds(
        make_engine, reference_model, weights
    )


def test_vllm_of_another_device_than_asked_for_is_refused(checkpoint: Path, reference_model: PreTrainedModel) -> None:
    device, own = ("cpu", "GPU") if DEVICE == "cuda" else ("cuda", "CPU")
    with pytest.raises(Unsupported, match=f"computes on the {own}, but model.device is '{device}'"):
        VllmEngine(checkpoint, seed=0, options=VllmOptions(max_running=8, max_length=160), device=device)
