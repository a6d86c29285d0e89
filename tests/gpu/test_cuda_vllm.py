"""What vLLM does on GPUs alone. The rest of its contract: ``tests/backends``."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ALONE = Path(__file__).with_name("vllm_alone.py")
NAMES = [
    "test_a_released_engine_needs_restore_and_weights_before_work",
    "test_a_restored_engine_samples_the_same_tokens_again_and_again",
    "test_adapters_in_half_precision_and_none_in_float32",
    "test_memory_is_not_released_under_live_requests",
    "test_memory_may_be_released_after_an_abort_in_the_middle_of_work",
    "test_releasing_or_restoring_twice_changes_nothing",
]


@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM")
@pytest.mark.parametrize("name", NAMES)
def test_in_a_process_of_its_own(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-W", "default", f"{ALONE}::{name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
