"""Checks whether a safetensors file is complete, from its header. Reads a few kilobytes of it and imports no torch.

A file is 8 bytes with the length of the header, the header (JSON: name to dtype, shape and place), then the tensors one
after the other without a gap. Whatever contradicts that is damage; a changed byte inside a tensor is not seen here.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_LONGEST_HEADER = 100_000_000
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


def weights_damage(directory: Path) -> str | None:
    """Return what is wrong with the weights of a Hugging Face checkpoint, in a sentence; None if no damage is found."""
    index = directory / INDEX_NAME
    if not index.is_file():
        single = directory / SINGLE_NAME
        return damage(single) if single.is_file() else f"it has neither {SINGLE_NAME} nor {INDEX_NAME}"
    try:
        shards: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        by_shard: dict[str, set[str]] = {}
        for tensor, shard in shards.items():
            by_shard.setdefault(shard, set()).add(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{INDEX_NAME} does not say which file holds which tensor"
    problems = (_shard_damage(directory / shard, wanted) for shard, wanted in sorted(by_shard.items()))
    return next((problem for problem in problems if problem), None)


def tensor_names(directory: Path) -> set[str]:
    """Return the names of the tensors of a checkpoint for which ``weights_damage`` returns None."""
    index, single = directory / INDEX_NAME, directory / SINGLE_NAME
    if index.is_file():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    return set(_read_header(single, single.stat().st_size)[0])


def stored_types(directory: Path) -> set[str]:
    """Return the types of the tensors of a checkpoint, as in "BF16"; empty if it has no safetensors files."""
    headers = (_read_header(path, path.stat().st_size)[0] for path in directory.glob("model*.safetensors"))
    return {entry["dtype"] for header in headers for entry in header.values()}


def damage(path: Path) -> str | None:
    """Return what is wrong with one file; None if no damage is found."""
    try:
        size = path.stat().st_size
        header, start = _read_header(path, size)
        end = _end_of_tensors(header)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        return f"{path.name} has a damaged header: {error}"
    return None if size == start + end else f"{path.name} has {size:,} bytes, its header promises {start + end:,}"


def _shard_damage(path: Path, wanted: set[str]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing, which {INDEX_NAME} names"
    if problem := damage(path):
        return problem
    header, _ = _read_header(path, path.stat().st_size)
    missing = sorted(wanted - header.keys())
    return f"{path.name} lacks {missing[0]}, which {INDEX_NAME} promises" if missing else None


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the entries of the tensors, and the offset of the first tensor."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, _LONGEST_HEADER):
            raise ValueError("it does not begin like a safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def _end_of_tensors(header: dict[str, Any]) -> int:
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        item_bytes = _ITEM_BYTES.get(entry["dtype"])  # a dtype that is newer than this table is taken at its word
        if begin != position or (item_bytes and end - begin != item_bytes * math.prod(entry["shape"])):
            raise ValueError(f"{name} does not fit its place")
        position = end
    return position
