"""The machine under a run: disk, memory, versions. Read when asked for, never cached."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "tailrace", "torch", "transformers", "safetensors", "tokenizers", "numpy", "pydantic", "peft", "bokeh", "rich",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    disk_free: int
    disk_total: int
    """Bytes of the file system that holds the run."""
    memory_available: int | None
    memory_total: int | None
    """Bytes; None where the system does not say."""
    versions: dict[str, str]


def read(run: Path) -> Machine:
    usage = shutil.disk_usage(run)
    memory = _memory()
    return Machine(
        disk_free=usage.free,
        disk_total=usage.total,
        memory_available=memory.get("MemAvailable"),
        memory_total=memory.get("MemTotal"),
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    )


def folder_bytes(folder: Path) -> int:
    """Of the files in it; those that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _memory() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = [line.split(":") for line in lines if ":" in line]
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
