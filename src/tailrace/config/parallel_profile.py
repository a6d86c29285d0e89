"""The file of how fast each parallel size is (`rollout.parallel_profile`): JSON, as `tailrace profile --parallel-sizes`
writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tailrace.config.profile_file import ProfileFile, is_same_model
from tailrace.core.costs import CostModel

FORMAT = 1
CPU = "cpu"
"""Name of the device of profiles that were measured without a GPU."""
_FILE = ProfileFile(
    setting="rollout.parallel_profile",
    command="tailrace profile --parallel-sizes",
    arguments="SIZES --json FILE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeProfile:
    """One instance of one parallel size."""

    size: int
    costs: CostModel
    kv_tokens: int
    """Size of its KV cache in tokens."""
    max_running: int
    """Most responses that it generates at the same time."""
    start_s: float
    """Seconds from its start until it could work."""
    release_s: float | None = None
    """Seconds in which it released its memory; None: its engine cannot."""
    wake_s: float | None = None
    """Seconds in which it took its memory again, without the pull of weights that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelProfile:
    """What was measured, where, and of which sizes."""

    model: str
    """The model, as the settings name it."""
    dtype: str
    engine: str
    device: str
    """Name of the GPU, or `cpu`."""
    sizes: tuple[SizeProfile, ...]

    def of(self, size: int) -> SizeProfile | None:
        return next((each for each in self.sizes if each.size == size), None)


def write_profile(path: Path, profile: ParallelProfile) -> None:
    path.write_text(json.dumps({"format": FORMAT, **asdict(profile)}, indent=2) + "\n")


def read_profile(
    path: Path,
    *,
    model: str,
    dtype: str,
    sizes: Sequence[int],
    engine: str | None = None,
    is_cpu: bool | None = None,
) -> ParallelProfile:
    """Return the profile; ``ValueError`` if it is none, is of another model, precision, engine or kind of device, or
    lacks one of the sizes. ``engine``, ``is_cpu``: None if the run will choose them."""
    profile = _FILE.read(path, _made)
    if not is_same_model(model, profile.model):
        raise _FILE.refusal(path, f"it was measured with the model {profile.model!r}, and this run trains {model!r}")
    if dtype != profile.dtype:
        raise _FILE.refusal(path, f"it was measured in {profile.dtype}, and this run computes in {dtype}")
    if engine is not None and engine != profile.engine:
        raise _FILE.refusal(path, f"it was measured with the engine {profile.engine!r}, and this run has {engine!r}")
    if is_cpu is not None and is_cpu != (profile.device == CPU):
        raise _FILE.refusal(path, f"it was measured on {profile.device}, and this run computes on another device")
    if missing := [size for size in sizes if profile.of(size) is None]:
        measured = ", ".join(str(each.size) for each in profile.sizes)
        raise _FILE.refusal(path, f"size {missing[0]} of rollout.parallel_sizes is not in it; it has {measured}")
    return profile


def _made(found: dict[str, Any]) -> ParallelProfile:
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']}, and this version of tailrace reads {FORMAT}")
    sizes = tuple(SizeProfile(**{**one, "costs": CostModel(**one["costs"])}) for one in found["sizes"])
    names = {name: str(found[name]) for name in ("model", "dtype", "engine", "device")}
    return ParallelProfile(**names, sizes=sizes)
