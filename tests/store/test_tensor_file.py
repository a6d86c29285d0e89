"""The names of a checkpoint's tensors, from its headers alone."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tailrace.store.tensor_file import INDEX_NAME, SINGLE_NAME, tensor_names, weights_damage

TENSORS = {"a.weight": torch.zeros(2), "b.weight": torch.zeros(3)}


def test_a_single_file_and_shards_with_an_index_hold_the_same_names(tmp_path: Path) -> None:
    single, sharded = tmp_path / "single", tmp_path / "sharded"
    single.mkdir()
    sharded.mkdir()
    save_file(TENSORS, single / SINGLE_NAME, metadata={"format": "pt"})
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, sharded / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in TENSORS}}
    (sharded / INDEX_NAME).write_text(json.dumps(index))
    for directory in (single, sharded):
        assert weights_damage(directory) is None
        assert tensor_names(directory) == set(TENSORS)
