"""The machine under a run: processors, disk, memory, versions. Read when asked for, never cached."""

from __future__ import annotations

import os
import platform
import shutil
from collections import Counter
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
        versions=versions(),
    )


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def describe() -> str:
    """Processors and memory in a few words, as far as the system tells them."""
    words = [f"{_processor()}, {os.cpu_count()} cores"]
    if (total := _memory().get("MemTotal")) is not None:
        words.append(f"{total / 2**30:.0f} GiB of memory")
    gpus = Counter(_field(path, "Model") for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")))
    return ", ".join([*words, *(f"{count} x {name}" for name, count in gpus.items())])


def _processor() -> str:
    return _field(Path("/proc/cpuinfo"), "model name") or platform.machine()


def _field(path: Path, name: str) -> str:
    """The first value of this name in a file of `name : value` lines; empty if there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def folder_bytes(folder: Path) -> int:
    """Size of all files in the folder. Files that vanish while it is read do not count."""
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
