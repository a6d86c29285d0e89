"""Files that hand each rank of an engine its part of the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tailrace.engines.vllm.rank_files import rank_files
from tailrace.weights.slots.channel_files import NoRoom

WEIGHTS = [{"w": torch.full((4,), float(rank))} for rank in range(2)]


def test_each_rank_finds_its_tensors_and_nothing_stays(tmp_path: Path) -> None:
    said: list[str] = []
    with rank_files(WEIGHTS, among=[tmp_path], say=said.append) as files:
        for own, file in zip(WEIGHTS, files, strict=True):
            assert torch.equal(load_file(file)["w"], own["w"])
    assert (said, list(tmp_path.iterdir())) == ([], [])


def test_files_that_do_not_fit_in_memory_go_to_disk_with_a_line_that_says_so(tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    free = {memory: 8, disk: 10**6}
    said: list[str] = []
    with rank_files(WEIGHTS, among=[memory, disk], free_bytes=free.__getitem__, say=said.append) as files:
        assert all(Path(file).parent.parent == disk for file in files)
    [line] = said
    assert line.startswith(f"weights go to {disk}, on disk")
    free[disk] = 8
    with (
        pytest.raises(NoRoom, match="--shm-size"),
        rank_files(WEIGHTS, among=[memory, disk], free_bytes=free.__getitem__),
    ):
        pass
