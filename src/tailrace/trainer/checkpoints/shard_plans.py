"""What ranks tell each other when they write a checkpoint together, as plain values.

torch.distributed.checkpoint would exchange these objects pickled, and unpickling what comes from a network runs any
code.

    plan        which parts of which tensors a rank has
    results     where in which file it has written them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

Json = Any


def encode_plan(plan: SavePlan) -> Json:
    return {"items": [_encode_item(item) for item in plan.items], "names": sorted(plan.planner_data)}


def decode_plan(data: Json) -> SavePlan:
    # Names of tensors are not nested, so each is the whole path to its tensor.
    return SavePlan([_decode_item(item) for item in data["items"]], planner_data={n: (n,) for n in data["names"]})


def encode_results(results: Sequence[WriteResult]) -> Json:
    return [
        [_encode_index(one.index), one.size_in_bytes, one.storage_data.relative_path, one.storage_data.offset,
         one.storage_data.length]
        for one in results
    ]  # fmt: skip


def decode_results(data: Json) -> list[WriteResult]:
    return [
        WriteResult(_decode_index(index), size, _StorageInfo(path, offset, length))
        for index, size, path, offset, length in data
    ]


def _encode_item(item: WriteItem) -> Json:
    assert item.tensor_data is not None, "a checkpoint has tensors only"
    given = item.tensor_data
    dtype = str(given.properties.dtype).removeprefix("torch.")
    box = [list(given.chunk.offsets), list(given.chunk.sizes)]
    return [_encode_index(item.index), item.type.name, box, dtype, given.properties.requires_grad, list(given.size)]


def _decode_item(data: Json) -> WriteItem:
    index, kind, (offsets, sizes), dtype, requires_grad, size = data
    return WriteItem(
        index=_decode_index(index),
        type=WriteItemType[kind],
        tensor_data=TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)),
            properties=TensorProperties(dtype=getattr(torch, dtype), requires_grad=requires_grad),
            size=torch.Size(size),
        ),
    )


def _encode_index(index: MetadataIndex) -> Json:
    return [index.fqn, None if index.offset is None else list(index.offset), index.index]


def _decode_index(data: Json) -> MetadataIndex:
    return MetadataIndex(*data)
