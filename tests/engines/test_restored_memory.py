"""What memory holds when an engine takes it again does not matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engines.native_engines import make_paged, make_plain, small_model  # noqa: F401
from engines.rollouts import generate, make_request
from tailrace.core.ids import Version
from tailrace.devices.releasable_memory import StorageMemory
from tailrace.engines.contract import Sampling
from tailrace.engines.native.checkpoint import CheckpointTensors
from tailrace.engines.native.engine import NativeEngine


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu"


@pytest.fixture
def restored_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of restored memory is 0xff, which is NaN in every floating-point type."""
    restore = StorageMemory.restore

    def restore_and_spoil(memory: StorageMemory) -> None:
        restore(memory)
        for storage, _ in memory._storages:
            storage.fill_(0xFF)

    monkeypatch.setattr(StorageMemory, "restore", restore_and_spoil)


@pytest.mark.usefixtures("restored_as_nan")
@pytest.mark.parametrize("kind", ["make_paged", "make_plain"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(top_p=0.9, top_k=5)], ids=["full", "truncated"])
def test_tokens_and_log_probs_are_those_of_a_new_engine(
    request: pytest.FixtureRequest,
    small_model: Path,  # noqa: F811
    kind: str,
    sampling: Sampling,
) -> None:
    make: Callable[..., NativeEngine] = request.getfixturevalue(kind)
    engine = make()
    requests = [
        replace(make_request(index, member, budget=30), sampling=sampling) for index in range(4) for member in range(3)
    ]
    before = generate(engine, requests)
    engine.release()
    engine.restore()
    engine.pull([CheckpointTensors(small_model)], Version(1))
    after = generate(engine, requests)
    for name, response in before.items():
        assert after[name].tokens.tolist() == response.tokens.tolist()
        torch.testing.assert_close(torch.as_tensor(after[name].logprobs), torch.as_tensor(response.logprobs))
