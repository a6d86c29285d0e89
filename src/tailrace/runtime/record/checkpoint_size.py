"""How large the first checkpoint of a run will be, from the sizes of the model. No weights are read."""

from __future__ import annotations

from pathlib import Path

from tailrace.config.settings import Settings
from tailrace.config.variants import ESTIMATORS
from tailrace.sizing.model_shape import ModelShape

_BYTES_PER_PARAMETER = 3 * 4
"""A checkpoint holds a weight and two moments of AdamW for every parameter that is trained, all in fp32."""
_BYTES_IN_HALF_PRECISION = 2
_WEIGHT_FILES = ("*.safetensors", "*.bin")


def expected_bytes(settings: Settings, model: Path) -> int:
    """Return about how many bytes the first checkpoint takes; 0 if that cannot be known.

    The number of parameters follows from ``config.json``; if that does not tell, from the files of the weights, which
    are taken to be in half precision. Those do not tell the size of an adapter.
    """
    num_learners = 2 if ESTIMATORS[settings.algorithm.advantage_estimator].needs_critic else 1
    return num_learners * _BYTES_PER_PARAMETER * _num_trained(model, settings.model.lora_rank)


def _num_trained(model: Path, lora_rank: int) -> int:
    """Parameters that one model trains; 0: not known."""
    try:
        shape = ModelShape.read(model)
    except ValueError:
        return 0 if lora_rank else _weight_bytes(model) // _BYTES_IN_HALF_PRECISION
    return shape.lora_parameters(lora_rank) if lora_rank else shape.num_parameters


def _weight_bytes(model: Path) -> int:
    """Bytes of the weights. A folder may hold the same weights in two formats: one of them counts."""
    return max(sum(path.stat().st_size for path in model.glob(pattern)) for pattern in _WEIGHT_FILES)
