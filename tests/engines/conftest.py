from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engines.rollouts import save_random_model


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("small-llama")


@pytest.fixture(scope="session")
def reference_model(checkpoint: Path) -> PreTrainedModel:
    return save_random_model(checkpoint)
