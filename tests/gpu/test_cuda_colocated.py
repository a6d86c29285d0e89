"""Placement `colocated` on CUDA: a trainer gives back what a step has used, and a whole run takes turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from end_to_end import launch
from tailrace.config.model_settings import ModelSettings
from tailrace.observe.journal.journal_file import read
from tailrace.weights.slots.channel_files import remove_channel
from tailrace.workers.messages import Published, TrainingInit
from tailrace.workers.training_worker import TrainingWorker
from workers.test_training_worker import Heard, model_init, publish, take_step

MIB = 2**20


@pytest.fixture(params=[False, True], ids=["shared", "colocated"])
def is_colocated(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture
def worker(is_colocated: bool, tmp_path: Path) -> Iterator[TrainingWorker]:
    init = model_init("policy", f"test-{tmp_path.name}", is_colocated=is_colocated)
    on_cuda = replace(init, model=ModelSettings(path=init.model.path, device="cuda", dtype="bfloat16"))
    worker = TrainingWorker(Heard(), TrainingInit(models=(on_cuda,)))
    yield worker
    remove_channel(worker.models["policy"].channel)


def unused_bytes() -> int:
    """What torch keeps and nobody uses."""
    return int(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())


def test_a_colocated_trainer_gives_its_cache_back_after_a_step_and_after_a_publish(
    worker: TrainingWorker, is_colocated: bool
) -> None:
    heard = worker.models["policy"]._link
    assert isinstance(heard, Heard)
    take_step(worker, 0)  # the first one makes what cuBLAS keeps for good
    for version in range(1, 3):
        large = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        del large
        assert unused_bytes() >= 256 * MIB
        take_step(worker, version)
        assert (unused_bytes() < 64 * MIB) == is_colocated
        large = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        del large
        worker.handle(publish(version + 1))
        heard.wait_for(Published, version + 1)
        assert (unused_bytes() < 64 * MIB) == is_colocated


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_colocated_run_on_cuda_ends_and_its_log_probs_agree(tmp_path: Path, dtype: str) -> None:
    output = tmp_path / "run"
    run = launch.train_well(output, model__dtype=dtype, model__device="cuda", schedule__placement="colocated")
    names = [type(entry.event).__name__ for _, entry in read(run.output / "journal.jsonl")]
    assert names.count("MemoryReleased") >= 4
    rows = [row for row in launch.untimed_metrics(output) if "reward/mean" in row]
    assert max(row["mismatch/logprob_abs_diff"] for row in rows) < (1e-3 if dtype == "float32" else 5e-2)
