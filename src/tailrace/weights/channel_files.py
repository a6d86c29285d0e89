"""Where the channel file of a run lies on this machine, and how old files of the same run are removed.

The name of the file follows from the run, so that a run that is started again finds what its killed predecessor left.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tailrace.weights.address import COLLECTIVE, CUDA_IPC, RAY_OBJECT_STORE, SHARED_MEMORY, ChannelAddress

MEMORY_DIRECTORY = Path("/dev/shm")


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def directories() -> list[Path]:
    """Directories for channel files, the preferred one first: memory where there is a memory file system, then disk."""
    disk = Path(tempfile.gettempdir())
    return [MEMORY_DIRECTORY, disk] if MEMORY_DIRECTORY.is_dir() else [disk]


def remove_channel(address: ChannelAddress) -> None:
    """Remove what a writer that has ended left at this address. Nothing happens if nothing is left."""
    if address.kind in (RAY_OBJECT_STORE, COLLECTIVE):
        return  # its weights end with their writer
    if address.kind not in (SHARED_MEMORY, CUDA_IPC):
        raise ValueError(f"a weight channel of kind {address.kind!r} is not a file of this machine")
    Path(address.location).unlink(missing_ok=True)


def unfinished(path: Path) -> Path:
    """Name of a channel file while it is being made."""
    return path.with_name(path.name + ".new")


def prepare_path(
    name: str, num_bytes: int, *, among: Sequence[Path] | None = None, free_bytes: Callable[[Path], int] = free_bytes
) -> Path:
    """Choose the path of a run's new channel file: in the first directory with room for it, else in the last one.

    Files that an earlier, killed process left under this name are removed. One exception: a file at the chosen path
    stays if the new one fits beside it, so that its readers never find the path empty.
    """
    paths = [directory / f"tailrace-{name}.weights" for directory in among or directories()]
    for path in paths:
        unfinished(path).unlink(missing_ok=True)
        if free_bytes(path.parent) <= num_bytes:
            path.unlink(missing_ok=True)  # frees its bytes, unless a live reader still has it open
    chosen = next((path for path in paths if free_bytes(path.parent) > num_bytes), paths[-1])
    for path in paths:
        if path != chosen:
            path.unlink(missing_ok=True)
    return chosen
