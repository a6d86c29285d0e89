"""The file of what passes of a model need (`reward.judge.profile`), as `tailrace profile --judge` writes it: JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailrace.config.profile_file import ProfileFile, is_same_model
from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile

CPU = "cpu"
_FORMAT = 1
_FILE = ProfileFile(setting="reward.judge.profile", command="tailrace profile --judge")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured, and where."""

    model: str
    """The model, as the settings name it."""
    dtype: str
    device: str
    """Name of the GPU, or `cpu`."""


def write_profile(path: Path, profile: OffloadProfile, measured: Measured) -> None:
    path.write_text(json.dumps({"format": _FORMAT, **asdict(measured), "profile": asdict(profile)}, indent=2) + "\n")


def read_profile(
    path: Path, *, model: str | None = None, dtype: str | None = None, is_cuda: bool = False
) -> OffloadProfile:
    """``ValueError`` if the file is no profile, or was measured for another model, in another precision, or on a CPU
    although the judge computes on a GPU (``is_cuda``). None: any model, any precision."""
    measured, profile = _FILE.read(path, _made)
    if model is not None and not is_same_model(model, measured.model):
        raise _FILE.refusal(path, f"it was measured with the model {measured.model!r}, and the judge is {model!r}")
    if dtype is not None and dtype != measured.dtype:
        raise _FILE.refusal(path, f"it was measured in {measured.dtype}, and the judge computes in {dtype}")
    if is_cuda and measured.device == CPU:
        raise _FILE.refusal(path, "it was measured on a CPU, where memory of a GPU cannot be measured")
    return profile


def _made(found: dict[str, Any]) -> tuple[Measured, OffloadProfile]:
    measured = Measured(**{name: str(found[name]) for name in ("model", "dtype", "device")})
    inside = dict(found["profile"])
    points = tuple(LengthPoint(**point) for point in inside.pop("points"))
    return measured, OffloadProfile(**inside, points=points)
