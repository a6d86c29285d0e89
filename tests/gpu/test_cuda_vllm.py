"""What vLLM does on GPUs alone: it releases its memory, and its adapters need half precision. The rest of its contract:
``tests/backends``."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tailrace.engines.vllm.versions import prepare_environment

prepare_environment(is_gpu=torch.cuda.is_available())  # as the worker of an engine does before it imports vLLM
pytest.importorskip("vllm")

from contract import engine_suite  # noqa: E402
from engines.rollouts import make_request, save_random_model, small_llama  # noqa: E402
from tailrace.engines.contract import Unsupported  # noqa: E402
from tailrace.engines.vllm.engine import VllmEngine  # noqa: E402
from tailrace.engines.vllm.options import VllmOptions  # noqa: E402

RELEASE = Path(__file__).with_name("vllm_release.py")
OWN_PROCESS = [
    "test_a_released_engine_needs_restore_and_weights_before_work",
    "test_a_restored_engine_samples_the_same_tokens_again_and_again",
    "test_memory_is_not_released_under_live_requests",
    "test_memory_may_be_released_after_an_abort_in_the_middle_of_work",
    "test_releasing_or_restoring_twice_changes_nothing",
]


@pytest.mark.parametrize("name", OWN_PROCESS)
def test_in_a_process_of_its_own(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-W", "default", f"{RELEASE}::{name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


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
