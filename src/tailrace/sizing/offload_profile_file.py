"""The file of what passes of a model need (`reward.judge.profile`), as `tailrace profile --judge` writes it: JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile

CPU = "cpu"
_FORMAT = 1


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
    measured, profile = _read(path)
    if model is not None and not _is_same_model(model, measured.model):
        raise _refusal(path, f"it was measured with the model {measured.model!r}, and the judge is {model!r}")
    if dtype is not None and dtype != measured.dtype:
        raise _refusal(path, f"it was measured in {measured.dtype}, and the judge computes in {dtype}")
    if is_cuda and measured.device == CPU:
        raise _refusal(path, "it was measured on a CPU, where memory of a GPU cannot be measured")
    return profile


def _read(path: Path) -> tuple[Measured, OffloadProfile]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        measured = Measured(**{name: str(found[name]) for name in ("model", "dtype", "device")})
        inside = dict(found["profile"])
        points = tuple(LengthPoint(**point) for point in inside.pop("points"))
        return measured, OffloadProfile(**inside, points=points)
    except OSError as error:
        raise ValueError(f"reward.judge.profile: {path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"reward.judge.profile: {path} is not a profile that `tailrace profile --judge` wrote ({error})"
        ) from error


def _is_same_model(one: str, other: str) -> bool:
    if one == other:
        return True
    return Path(one).is_dir() and Path(other).is_dir() and Path(one).resolve() == Path(other).resolve()


def _refusal(path: Path, why: str) -> ValueError:
    return ValueError(
        f"reward.judge.profile: {path} does not fit this run: {why}; measure again with `tailrace profile --judge`"
    )
