"""Where each tensor lies in a block of bytes: name -> (offset, shape, dtype).

Offsets are multiples of ``ALIGNMENT``, in the order given; tensors do not overlap. The table is pure data and goes
through JSON unchanged.
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
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def padded_bytes(self) -> int:
        """Up to the next entry."""
        return align(self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightLayout:
    entries: tuple[Entry, ...]

    @classmethod
    def build(cls, tensors: Iterable[tuple[str, Sequence[int], str]]) -> Self:
        """From names, shapes and dtypes (``float32``, ``bfloat16``, ...)."""
        entries: list[Entry] = []
        offset = 0
        for name, shape, dtype in tensors:
            if dtype not in ITEM_BYTES:
                raise ValueError(f"{name} has the dtype {dtype}; a weight channel carries {', '.join(ITEM_BYTES)}")
            entries.append(Entry(name=name, offset=offset, shape=tuple(shape), dtype=dtype))
            offset += entries[-1].padded_bytes
        if len({entry.name for entry in entries}) != len(entries):
            raise ValueError("a name occurs twice in the layout")
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
