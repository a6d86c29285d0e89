"""The tensors of a Hugging Face checkpoint directory, read one at a time from its safetensors files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open


class CheckpointTensors(Mapping[str, torch.Tensor]):
    """Maps parameter names to tensors. Reads ``model.safetensors``, or shards with an index."""

    def __init__(self, checkpoint: Path) -> None:
        self._files = _locate(checkpoint)

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(str(self._files[name]), framework="pt") as file:
            return file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _locate(checkpoint: Path) -> dict[str, Path]:
    """From each parameter name to the file that holds it."""
    index = checkpoint / "model.safetensors.index.json"
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: checkpoint / shard for name, shard in shards.items()}
    single = checkpoint / "model.safetensors"
    if not single.is_file():
        raise ValueError(f"{checkpoint} has no model.safetensors and no model.safetensors.index.json")
    with safe_open(str(single), framework="pt") as file:
        return dict.fromkeys(file.keys(), single)
