"""Table of the tensors in a block of bytes: name, offset, shape and dtype.

Tensors lie in the order given and do not overlap. Offsets are multiples of ``ALIGNMENT``. The table can be written as
JSON and read back unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

ALIGNMENT = 64
ITEM_BYTES = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The whole tensor, as a box."""
        return tuple((0, size) for size in self.shape)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """Number of bytes up to the next entry."""
        return align(self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    entries: tuple[Entry, ...]

    @classmethod
    def build(cls, tensors: Iterable[tuple[str, Sequence[int], str]]) -> Self:
        """Make a layout from (name, shape, dtype) of each tensor; a dtype is ``float32``, ``bfloat16`` and so on."""
        entries: list[Entry] = []
        offset = 0
        for name, shape, dtype in tensors:
            if dtype not in ITEM_BYTES:
                raise ValueError(f"{name} has the dtype {dtype}; a weight channel carries {', '.join(ITEM_BYTES)}")
            entries.append(Entry(name=name, offset=offset, shape=tuple(shape), dtype=dtype))
            offset += entries[-1].padded_bytes
        if len({entry.name for entry in entries}) != len(entries):
            raise ValueError("two tensors of the layout have the same name")
        return cls(entries=tuple(entries))

    @property
    def num_bytes(self) -> int:
        return self.entries[-1].offset + self.entries[-1].padded_bytes if self.entries else 0

    def to_json(self) -> str:
        return json.dumps([asdict(entry) for entry in self.entries])

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = [dict(entry, shape=tuple(entry["shape"])) for entry in json.loads(text)]
        return cls(entries=tuple(Entry(**entry) for entry in fields))


def align(num_bytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-num_bytes // alignment) * alignment
