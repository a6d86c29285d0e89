"""What the vLLM engine can do depends on how it is started."""

from __future__ import annotations

import pytest

from tailrace.engines.vllm.capabilities import capabilities


@pytest.mark.parametrize(
    ("is_gpu", "may_release", "is_float32", "releases_memory", "serves_adapters"),
    [
        (False, True, True, False, True),
        (True, False, False, False, True),
        (True, True, False, True, True),
        (True, False, True, False, False),
    ],
)
def test_memory_and_adapters(
    is_gpu: bool, may_release: bool, is_float32: bool, releases_memory: bool, serves_adapters: bool
) -> None:
    found = capabilities(is_gpu=is_gpu, may_release=may_release, is_float32=is_float32)
    assert (found.releases_memory, found.serves_adapters) == (releases_memory, serves_adapters)
