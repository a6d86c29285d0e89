"""Plans that several processes carry out, and one process too, to compare what they find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.model.model_files import open_model
from tailrace.trainer.trainer import Trainer
from trainer.rank_process import Found, Plan, carry_out, run


def given(**algorithm: Any) -> dict[str, Any]:
    return {
        "model": ModelSettings(device="cpu"),
        "settings": TrainerSettings(learning_rate=1e-2, max_tokens_per_gpu=40),
        "algorithm": AlgorithmSettings.model_validate(algorithm),
        "temperature": 1.0,
        "max_steps": 10,
        "seed": 0,
    }


def with_trainer(settings: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    settings = settings or given()
    return settings | {"settings": settings["settings"].model_copy(update=changes)}


def in_half_precision(model_path: Path, folder: Path) -> Path:
    """The same model with its weights rounded, in files half as large."""
    open_model(model_path).to(torch.bfloat16).save_pretrained(folder)
    return folder


def assert_same(alone: Found, together: Found) -> None:
    assert len(alone.metrics) == len(together.metrics)
    for step, (expected, found) in enumerate(zip(alone.metrics, together.metrics, strict=True)):
        # After an optimizer step weights differ by more than rounding, as below.
        assert found == pytest.approx(expected, rel=1e-3 if step else 1e-4, abs=1e-6)
    for expected, found in zip(alone.gradients, together.gradients, strict=True):
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    for expected, found in zip(alone.weights, together.weights, strict=True):
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            # After an optimizer step: AdamW divides by the size of the gradient, however small that is, so one that is
            # nothing but rounding may move a weight either way.
            is_close = torch.isclose(found[name], tensor, rtol=1e-3, atol=1e-4)
            assert (~is_close).sum() <= 1e-3 * tensor.numel() + 1, name


STEP = ("finish_step",)
ACCUMULATED = [("accumulate", 0, None), ("accumulate", 1, None)]
TWO_STEPS = [*ACCUMULATED, STEP, ("weights",)] * 2
Actions = list[tuple[Any, ...]]


class Scenarios:
    """Plans by name. They are carried out by one start of the processes, because starting takes longest."""

    def __init__(self, folder: Path, batches: list[Any]) -> None:
        self.folder, self._batches = folder, batches
        self.plans: dict[str, Plan] = {}

    def add(self, name: str, model_path: Path, actions: Actions, settings: dict[str, Any] | None = None) -> None:
        """``accumulate`` and ``publish`` name the batch by its number."""
        filled = [
            (each[0], self._batches[each[1]], each[2]) if each[0] in ("accumulate", "publish") else each
            for each in actions
        ]
        self.plans[name] = Plan(model_path=model_path, given=settings or given(), actions=filled)

    def alone(self, name: str) -> Found:
        return carry_out(self.plans[name], Trainer(self.plans[name].model_path, **self.plans[name].given))

    def together(
        self, *, num_shards: int = 1, num_replicas: int = 1, tensor_parallel_size: int = 1
    ) -> dict[str, list[Found]]:
        return run(
            self.plans,
            _new(self.folder),
            num_shards=num_shards,
            num_replicas=num_replicas,
            tensor_parallel_size=tensor_parallel_size,
        )


def _new(folder: Path) -> Path:
    found = folder / f"run-{len(list(folder.glob('run-*')))}"
    found.mkdir()
    return found
