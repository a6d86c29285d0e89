"""Where files with weights lie on this machine: in memory if they fit there, else on disk, and the user is told.

The name of a channel file follows from the run, so that a run that is started again finds what its killed predecessor
left. What other killed runs left is removed when a trainer starts (``leftovers.py``).
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tailrace.weights.address import COLLECTIVE, CUDA_IPC, RAY_OBJECT_STORE, SHARED_MEMORY, ChannelAddress
from tailrace.weights.slots.leftovers import PREFIX

MEMORY_DIRECTORY = Path("/dev/shm")
MORE_ROOM = (
    f"give {MEMORY_DIRECTORY} more room (a container: --shm-size or --ipc host; else: mount -o remount,size=... "
    f"{MEMORY_DIRECTORY})"
)


class Chosen(NamedTuple):
    path: Path
    note: str | None
    """What to tell the user if it is not the preferred place."""


class NoRoom(OSError):
    """No directory has room. The message says how much each has, and what to do."""


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def directories() -> list[Path]:
    """Directories for files with weights, the preferred one first: memory where there is a memory file system, then
    disk."""
    disk = Path(tempfile.gettempdir())
    return [MEMORY_DIRECTORY, disk] if MEMORY_DIRECTORY.is_dir() else [disk]


def choose_directory(
    num_bytes: int, *, among: Sequence[Path] | None = None, free_bytes: Callable[[Path], int] = free_bytes
) -> Chosen:
    """The first directory with room for this many bytes. Raises ``NoRoom``."""
    places = [(directory, free_bytes(directory)) for directory in among or directories()]
    for number, (directory, free) in enumerate(places):
        if free > num_bytes:
            return Chosen(directory, _note(directory, num_bytes, places[:number]))
    has = ", ".join(f"{directory} has {_size(free)} free" for directory, free in places)
    raise NoRoom(errno.ENOSPC, f"no room for {_size(num_bytes)} of weights: {has}; {MORE_ROOM}")


def remove_channel(address: ChannelAddress) -> None:
    """Remove what a writer that has ended left at this address. Nothing happens if nothing is left."""
    if address.kind in (RAY_OBJECT_STORE, COLLECTIVE):
        return  # its weights end with their writer
    if address.kind not in (SHARED_MEMORY, CUDA_IPC):
        raise ValueError(f"a weight channel of kind {address.kind!r} is not a file of this machine")
    Path(address.location).unlink(missing_ok=True)


def disk_line(address: ChannelAddress) -> str | None:
    """What to tell the user if published weights are on disk; None if they are not."""
    path = Path(address.location)
    if address.kind != SHARED_MEMORY or path.parent == MEMORY_DIRECTORY or not MEMORY_DIRECTORY.is_dir():
        return None
    return f"weights are published on disk, in {path}, because {MEMORY_DIRECTORY} has too little room: {MORE_ROOM}"


def unfinished(path: Path) -> Path:
    """Name of a channel file while it is being made."""
    return path.with_name(path.name + ".new")


def prepare_path(
    name: str, num_bytes: int, *, among: Sequence[Path] | None = None, free_bytes: Callable[[Path], int] = free_bytes
) -> Chosen:
    """Choose the path of a run's new channel file: in the first directory with room for it. Raises ``NoRoom``.

    Files that an earlier, killed process left under this name are removed. One exception: a file at the chosen path
    stays if the new one fits beside it, so that its readers never find the path empty.
    """
    places = list(among or directories())
    paths = {directory: directory / f"{PREFIX}{name}.weights" for directory in places}
    for path in paths.values():
        unfinished(path).unlink(missing_ok=True)
        if free_bytes(path.parent) <= num_bytes:
            path.unlink(missing_ok=True)  # frees its bytes, unless a live reader still has it open
    chosen = choose_directory(num_bytes, among=places, free_bytes=free_bytes)
    for directory, path in paths.items():
        if directory != chosen.path:
            path.unlink(missing_ok=True)
    return Chosen(paths[chosen.path], chosen.note)


def _note(chosen: Path, num_bytes: int, passed_over: Sequence[tuple[Path, int]]) -> str | None:
    if not passed_over:
        return None
    full = " and ".join(f"{directory} has {_size(free)} free" for directory, free in passed_over)
    return f"weights go to {chosen}, on disk, because they take {_size(num_bytes)} and {full}; {MORE_ROOM}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"
