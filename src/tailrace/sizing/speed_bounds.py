"""What a machine allows: bounds that follow from its bandwidth, its arithmetic and the shape of a model.

A bound counts the work that cannot be avoided: weights and KV cache are read once per decode step, every token is
multiplied with every weight. It leaves out attention's arithmetic and all that is read or written in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.sizing.model_shape import ModelShape

Unit = Literal["tokens/s", "s"]
_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpeed:
    bytes_per_s: float
    """Bytes that the device reads and writes per second, both counted."""
    flops: float
    """Floating-point operations per second in large matrix products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    unit: Unit
    measured: float
    allowed: float

    @property
    def share(self) -> float:
        """Share of what the machine allows: 1 is the bound."""
        return self.measured / self.allowed if self.unit == "tokens/s" else self.allowed / self.measured

    def to_dict(self) -> dict[str, float | str]:
        return {
            "name": self.name,
            "unit": self.unit,
            "measured": self.measured,
            "machine_allows": self.allowed,
            "share": self.share,
        }


def decode_bound(shape: ModelShape, speed: MachineSpeed, *, batch: int, kv_tokens: float, itemsize: int) -> float:
    """Most tokens per second of a batch whose responses hold ``kv_tokens`` together."""
    num_bytes = itemsize * shape.matmul_parameters + shape.kv_bytes(itemsize) * kv_tokens
    reading, computing = num_bytes / speed.bytes_per_s, 2 * shape.matmul_parameters * batch / speed.flops
    return batch / max(reading, computing)


def prefill_bound(shape: ModelShape, speed: MachineSpeed) -> float:
    """Most tokens per second. Prefill does not need the output head."""
    return speed.flops / (2 * shape.num_layers * shape.layer_parameters)


def training_bound(shape: ModelShape, speed: MachineSpeed) -> float:
    """Most tokens per second: the backward pass costs twice the forward pass."""
    return speed.flops / (6 * shape.matmul_parameters)


def publish_bound(shape: ModelShape, speed: MachineSpeed, *, itemsize: int) -> float:
    """Least seconds: fp32 weights are read, and written in the precision of rollout."""
    return (_FP32 + itemsize) * shape.num_parameters / speed.bytes_per_s


def pull_bound(shape: ModelShape, speed: MachineSpeed, *, itemsize: int) -> float:
    """Least seconds: published weights are read and written once."""
    return 2 * itemsize * shape.num_parameters / speed.bytes_per_s
